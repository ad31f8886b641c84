#include "tests/unit/worker/backend/cuda/transformer_rig.h"

#include "tests/unit/worker/backend/cuda/test_gemm.h"

namespace causeway::worker::cuda {

TransformerRig::TransformerRig(const v1::ModelConfig& model, const FragmentPlan& plan,
                               const std::vector<float>& parameters,
                               const CudaTransformer::Options& options)
    : vocabulary_(model.vocabulary_size()),
      gemm_(MakeTestGemm({}, &memory_).value()),
      arena_size_(plan.arena_size()),
      gradients_(device_.UploadFloat(Doubles(parameters.size(), 0))),
      loss_(device_.Allocate<StepLoss>(1)),
      transformer_(CudaTransformer::Create(
                       model, plan, options,
                       device_.UploadBf16(Doubles(parameters.begin(), parameters.end())),
                       GradientPlaces(gradients_), &memory_, gemm_.get(), device_.stream())
                       .value()) {}

void TransformerRig::Upload(const HostTokens& tokens) {
  std::vector<int32_t> order(tokens.inputs.size());
  TokenOrder(vocabulary_).Sort(tokens.inputs, order);
  tokens_ = {.inputs = device_.Upload(tokens.inputs),
             .targets = device_.Upload(tokens.targets),
             .document_starts =
                 tokens.document_starts.empty() ? nullptr : device_.Upload(tokens.document_starts),
             .order = device_.Upload(order)};
}

TransformerRig::Result TransformerRig::Run(const std::vector<HostTokens>& micro_batches,
                                           bool graphs) {
  const auto count = static_cast<double>(micro_batches.size());
  bool accumulate = false;
  for (const HostTokens& tokens : micro_batches) {
    Upload(tokens);
    const CudaTransformer::Pass pass = {.tokens = tokens_,
                                        .gradient_scale = static_cast<float>(1 / count),
                                        .loss_weight = 1 / count,
                                        .accumulate = accumulate,
                                        .accumulate_loss = accumulate,
                                        .loss = loss_};
    const auto issue = [&] { return transformer_->ForwardBackward(pass, {}, device_.stream()); };
    if (graphs) {
      const Graph graph = Graph::Record(device_.stream(), issue).value();
      EXPECT_EQ(graph.Start(device_.stream()), absl::OkStatus());
      EXPECT_EQ(cudaStreamSynchronize(device_.stream()), cudaSuccess);
    } else {
      EXPECT_EQ(issue(), absl::OkStatus());
    }
    accumulate = true;
  }
  return {device_.Value(loss_), device_.Download(gradients_, arena_size_)};
}

double TransformerRig::Loss(const HostTokens& tokens, int sequences, std::vector<float>* rows) {
  Upload(tokens);
  const int64_t length = static_cast<int64_t>(tokens.inputs.size()) / sequences;
  EXPECT_EQ(transformer_->Forward(tokens_, sequences, length, loss_, device_.stream()),
            absl::OkStatus());
  if (rows != nullptr) {
    *rows = device_.Download(transformer_->row_losses(), std::ssize(tokens.inputs));
  }
  return device_.Value(loss_).cross_entropy;
}

}  // namespace causeway::worker::cuda
