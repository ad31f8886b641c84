#include "tests/unit/worker/backend/cuda/transformer_rig.h"

#include "tests/unit/worker/backend/cuda/kernels/device_array.h"
#include "tests/unit/worker/backend/cuda/test_gemm.h"

namespace causeway::worker::cuda {
namespace {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

}  // namespace

TransformerRig::TransformerRig(const v1::ModelConfig& model, const FragmentPlan& plan,
                               const std::vector<float>& parameters,
                               const CudaTransformer::Options& options)
    : vocabulary_(model.vocabulary_size()),
      stream_(Must(Stream::Create())),
      gemm_(Must(MakeTestGemm({}, &memory_))),
      arena_size_(plan.arena_size()) {
  std::vector<__nv_bfloat16> rounded;
  for (const float value : parameters) rounded.push_back(__float2bfloat16_rn(value));
  weights_ = Must(memory_.Allocate<__nv_bfloat16>("weights", arena_size_, ""));
  gradients_ = Must(memory_.Allocate<float>("gradients", arena_size_, ""));
  loss_ = Must(memory_.Allocate<StepLoss>("loss", 1, ""));
  const int64_t tokens = int64_t{options.micro_batch_sequences} * model.sequence_length();
  for (int32_t** to : {&tokens_.inputs, &tokens_.targets, &tokens_.order, &document_starts_}) {
    *to = Must(memory_.Allocate<int32_t>("tokens", tokens, ""));
  }
  MustWork(cudaMemcpy(weights_, rounded.data(), rounded.size() * sizeof(__nv_bfloat16),
                      cudaMemcpyHostToDevice));
  MustWork(cudaMemset(gradients_, 0, static_cast<size_t>(arena_size_) * sizeof(float)));
  MustWork(cudaDeviceSynchronize());
  transformer_ =
      Must(CudaTransformer::Create(model, plan, options, weights_, GradientPlaces(gradients_),
                                   &memory_, gemm_.get(), stream_.get()));
}

void TransformerRig::Upload(const HostTokens& tokens) {
  std::vector<int32_t> order(tokens.inputs.size());
  TokenOrder(vocabulary_).Sort(tokens.inputs, order);
  const auto copy = [](int32_t* to, const std::vector<int32_t>& from) {
    MustWork(cudaMemcpy(to, from.data(), from.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
  };
  copy(tokens_.inputs, tokens.inputs);
  copy(tokens_.targets, tokens.targets);
  copy(tokens_.order, order);
  if (!tokens.document_starts.empty()) copy(document_starts_, tokens.document_starts);
  MustWork(cudaDeviceSynchronize());  // The stream does not wait for such copies.
  tokens_.document_starts = tokens.document_starts.empty() ? nullptr : document_starts_;
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
    const auto issue = [&] { return transformer_->ForwardBackward(pass, {}, stream_.get()); };
    if (graphs) {
      Must(Must(Graph::Record(stream_.get(), issue)).Start(stream_.get()));
    } else {
      Must(issue());
    }
    Must(stream_.Wait("a micro-step"));
    accumulate = true;
  }
  Result result;
  result.gradients.resize(static_cast<size_t>(arena_size_));
  MustWork(cudaMemcpy(result.gradients.data(), gradients_, result.gradients.size() * sizeof(float),
                      cudaMemcpyDeviceToHost));
  MustWork(cudaMemcpy(&result.loss, loss_, sizeof(StepLoss), cudaMemcpyDeviceToHost));
  return result;
}

double TransformerRig::Loss(const HostTokens& tokens, int sequences, std::vector<float>* rows) {
  Upload(tokens);
  const int64_t length = static_cast<int64_t>(tokens.inputs.size()) / sequences;
  Must(transformer_->Forward(tokens_, sequences, length, loss_, stream_.get()));
  Must(stream_.Wait("a forward pass"));
  StepLoss loss;
  MustWork(cudaMemcpy(&loss, loss_, sizeof(StepLoss), cudaMemcpyDeviceToHost));
  if (rows != nullptr) {
    rows->resize(tokens.inputs.size());
    MustWork(cudaMemcpy(rows->data(), transformer_->row_losses(), rows->size() * sizeof(float),
                        cudaMemcpyDeviceToHost));
  }
  return loss.cross_entropy;
}

}  // namespace causeway::worker::cuda
