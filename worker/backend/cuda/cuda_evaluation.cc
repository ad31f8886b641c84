#include "worker/backend/cuda/cuda_evaluation.h"

namespace causeway::worker::cuda {
namespace {

constexpr int64_t kStagingValues = int64_t{1} << 22;

}  // namespace

absl::Status DeviceEvaluator::Begin(const Options& options, DeviceMemory* memory) {
  options_ = options;
  ASSIGN_OR_RETURN(staging_, memory->Allocate<float>("staging", kStagingValues, ""));
  ASSIGN_OR_RETURN(host_loss_, PinnedBuffer<StepLoss>::Create(1));
  return absl::OkStatus();
}

absl::Status DeviceEvaluator::Wait() const {
  return CheckCuda(cudaStreamSynchronize(options_.stream), "an evaluation");
}

absl::Status DeviceEvaluator::UseParameters(std::span<const float> parameters) {
  const auto size = static_cast<int64_t>(parameters.size());
  for (int64_t begin = 0; begin < size; begin += kStagingValues) {
    const int64_t count = std::min(kStagingValues, size - begin);
    RETURN_IF_ERROR(CopyAsync(staging_, parameters.data() + begin, count, options_.stream,
                              "copying parameters to the GPU"));
    CastToBf16(count, staging_, options_.weights + begin, options_.stream);
  }
  RETURN_IF_ERROR(CheckLaunches("casting parameters"));
  return Wait();
}

absl::StatusOr<double> DeviceEvaluator::Loss(std::span<const int32_t> inputs,
                                             std::span<const int32_t> targets,
                                             std::span<const int32_t> document_starts) {
  DeviceTokens tokens = options_.tokens;
  for (const auto& [to, from] :
       {std::pair(tokens.inputs, inputs), std::pair(tokens.targets, targets),
        std::pair(tokens.document_starts, document_starts)}) {
    RETURN_IF_ERROR(
        CopyAsync(to, from.data(), std::ssize(from), options_.stream, "copying tokens"));
  }
  if (document_starts.empty()) tokens.document_starts = nullptr;
  const int64_t length = options_.transformer->sequence_length();
  const int sequences = static_cast<int>(static_cast<int64_t>(inputs.size()) / length);
  RETURN_IF_ERROR(
      options_.transformer->Forward(tokens, sequences, length, options_.loss, options_.stream));
  RETURN_IF_ERROR(
      CopyAsync(host_loss_.data(), options_.loss, 1, options_.stream, "copying the loss"));
  RETURN_IF_ERROR(Wait());
  return host_loss_[0].cross_entropy;
}

absl::StatusOr<std::unique_ptr<CudaEvaluation>> CudaEvaluation::Create(const v1::ModelConfig& model,
                                                                       const FragmentPlan& plan,
                                                                       int micro_batch_sequences,
                                                                       const DeviceInfo& device,
                                                                       const MakeGemm& make_gemm) {
  RETURN_IF_ERROR(CheckShape(model));
  RETURN_IF_ERROR(UseDevice(device.index));
  auto made = std::unique_ptr<CudaEvaluation>(new CudaEvaluation(make_gemm));
  DeviceMemory& memory = made->memory_;
  ASSIGN_OR_RETURN(made->stream_, Stream::Create());
  const int64_t arena = plan.arena_size();
  ASSIGN_OR_RETURN(__nv_bfloat16* const weights,
                   memory.Allocate<__nv_bfloat16>("bf16 weights", arena, ""));
  const int64_t batch = int64_t{micro_batch_sequences} * model.sequence_length();
  ASSIGN_OR_RETURN(int32_t* const tokens, memory.Allocate<int32_t>("tokens", 3 * batch, ""));
  ASSIGN_OR_RETURN(StepLoss* const loss, memory.Allocate<StepLoss>("partial sums", 1, ""));
  ASSIGN_OR_RETURN(made->gemm_, make_gemm(device, &memory));
  // No pass keeps what a backward pass would need.
  ASSIGN_OR_RETURN(
      made->transformer_,
      CudaTransformer::Create(
          model, plan,
          {.micro_batch_sequences = micro_batch_sequences, .recompute = Recompute::kBlocks},
          weights, GradientPlaces(nullptr), &memory, made->gemm_.get(), made->stream_.get()));
  RETURN_IF_ERROR(made->Begin({.transformer = made->transformer_.get(),
                               .weights = weights,
                               .tokens = {.inputs = tokens,
                                          .targets = tokens + batch,
                                          .document_starts = tokens + 2 * batch,
                                          .order = nullptr},
                               .loss = loss,
                               .stream = made->stream_.get()},
                              &memory));
  return made;
}

CudaEvaluation::~CudaEvaluation() {
  // Nothing is freed that work still uses.
  if (stream_.get() != nullptr) (void)cudaStreamSynchronize(stream_.get());
}

}  // namespace causeway::worker::cuda
