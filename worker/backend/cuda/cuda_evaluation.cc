#include "worker/backend/cuda/cuda_evaluation.h"

#include "common/base/status_macros.h"

namespace causeway::worker::cuda {

absl::StatusOr<std::unique_ptr<CudaEvaluation>> CudaEvaluation::Create(
    const v1::ModelConfig& model, const FragmentPlan& plan, int micro_batch_sequences,
    const DeviceInfo& device, const DeviceRank::MakeGemm& make_gemm) {
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
  ASSIGN_OR_RETURN(made->evaluator_,
                   DeviceEvaluator::Create({.transformer = made->transformer_.get(),
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

absl::Status CudaEvaluation::UseParameters(std::span<const float> parameters) {
  return evaluator_->UseParameters(parameters);
}

absl::StatusOr<double> CudaEvaluation::Loss(std::span<const int32_t> inputs,
                                            std::span<const int32_t> targets,
                                            std::span<const int32_t> document_starts) {
  return evaluator_->Loss(inputs, targets, document_starts);
}

absl::Status CudaEvaluation::TokenLosses(std::span<const int32_t> inputs,
                                         std::span<const int32_t> targets, int64_t length,
                                         std::span<float> losses) {
  return evaluator_->TokenLosses(inputs, targets, length, losses);
}

}  // namespace causeway::worker::cuda
