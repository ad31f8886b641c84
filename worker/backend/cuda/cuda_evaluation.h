// A model on one GPU that is evaluated and not trained: bf16 weights and what a forward pass needs,
// no gradients and no optimizer.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/sync/backend.h"

namespace causeway::worker::cuda {

// Losses of given parameters on one GPU, in training (DeviceRank) and where there is nothing to
// train (CudaEvaluation). Used by the thread whose device it is. Every call waits for what it has
// enqueued.
class DeviceEvaluator : public EvaluationModel {
 public:
  // All that is pointed at is on the device but the transformer, and outlives the evaluator.
  struct Options {
    CudaTransformer* transformer = nullptr;
    __nv_bfloat16* weights = nullptr;  // That the transformer reads.
    DeviceTokens tokens;               // Room for a micro-batch; document_starts, too.
    StepLoss* loss = nullptr;
    cudaStream_t stream = nullptr;
  };

  // Allocates a staging buffer. Before all other calls.
  absl::Status Begin(const Options& options, DeviceMemory* memory);

  int64_t sequence_length() const override { return options_.transformer->sequence_length(); }
  int micro_batch_sequences() const override {
    return options_.transformer->micro_batch_sequences();
  }
  // `parameters` need not stay.
  absl::Status UseParameters(std::span<const float> parameters) override;
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override;

 private:
  absl::Status Wait() const;

  Options options_;
  float* staging_ = nullptr;
  PinnedBuffer<StepLoss> host_loss_;
};

// With a model of its own. Made and used by one thread, whose device it becomes.
class CudaEvaluation final : public DeviceEvaluator {
 public:
  // `model` is complete, `plan` made from it; both may go. Errors of CheckShape, and
  // RESOURCE_EXHAUSTED as DeviceMemory says it.
  static absl::StatusOr<std::unique_ptr<CudaEvaluation>> Create(const v1::ModelConfig& model,
                                                                const FragmentPlan& plan,
                                                                int micro_batch_sequences,
                                                                const DeviceInfo& device,
                                                                const MakeGemm& make_gemm);
  ~CudaEvaluation() override;

 private:
  explicit CudaEvaluation(const MakeGemm& make_gemm) : make_gemm_(make_gemm) {}

  const MakeGemm make_gemm_;  // Owns what products refer to.
  // Memory before what uses it, so that it is freed last.
  DeviceMemory memory_;
  Stream stream_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudaTransformer> transformer_;
};

}  // namespace causeway::worker::cuda
