// A model on one GPU that is evaluated and not trained: bf16 weights and what a forward pass needs,
// no gradients and no optimizer.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_CUDA_EVALUATION_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_CUDA_EVALUATION_H_

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/device_evaluator.h"
#include "worker/backend/cuda/device_rank.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/evaluation_model.h"

namespace causeway::worker::cuda {

// Made and used by one thread, whose device it becomes.
class CudaEvaluation final : public EvaluationModel {
 public:
  // `model` is complete, `plan` made from it; both may go. Errors of CheckShape, and
  // RESOURCE_EXHAUSTED as DeviceMemory says it.
  static absl::StatusOr<std::unique_ptr<CudaEvaluation>> Create(
      const v1::ModelConfig& model, const FragmentPlan& plan, int micro_batch_sequences,
      const DeviceInfo& device, const DeviceRank::MakeGemm& make_gemm);
  ~CudaEvaluation() override;

  int64_t sequence_length() const override { return transformer_->sequence_length(); }
  int micro_batch_sequences() const override { return transformer_->micro_batch_sequences(); }
  absl::Status UseParameters(std::span<const float> parameters) override;
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override;
  absl::Status TokenLosses(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                           int64_t length, std::span<float> losses) override;

 private:
  explicit CudaEvaluation(const DeviceRank::MakeGemm& make_gemm) : make_gemm_(make_gemm) {}

  const DeviceRank::MakeGemm make_gemm_;  // Owns what products refer to.
  // Memory before what uses it, so that it is freed last.
  DeviceMemory memory_;
  Stream stream_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudaTransformer> transformer_;
  std::unique_ptr<DeviceEvaluator> evaluator_;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_CUDA_EVALUATION_H_
