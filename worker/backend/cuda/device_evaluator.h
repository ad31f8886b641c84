// Losses of given parameters on one GPU: what is behind EvaluationModel's calls, in training
// (DeviceRank) and where there is nothing to train (CudaEvaluation).
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_EVALUATOR_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_EVALUATOR_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/kernels/classifier.h"

namespace causeway::worker::cuda {

// Used by the thread whose device it is. Every call waits for what it has enqueued.
class DeviceEvaluator {
 public:
  // All that is pointed at is on the device but the transformer, and outlives the evaluator.
  struct Options {
    CudaTransformer* transformer = nullptr;
    __nv_bfloat16* weights = nullptr;  // That the transformer reads.
    DeviceTokens tokens;               // Room for a micro-batch; document_starts, too.
    StepLoss* loss = nullptr;
    cudaStream_t stream = nullptr;
  };

  // Allocates a staging buffer.
  static absl::StatusOr<std::unique_ptr<DeviceEvaluator>> Create(const Options& options,
                                                                 DeviceMemory* memory);

  // As EvaluationModel's; `parameters` need not stay.
  absl::Status UseParameters(std::span<const float> parameters);
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts);
  absl::Status TokenLosses(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                           int64_t length, std::span<float> losses);

 private:
  explicit DeviceEvaluator(const Options& options) : options_(options) {}
  // Enqueues the forward pass of these windows.
  absl::Status Forward(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                       std::span<const int32_t> document_starts, int64_t length);
  absl::Status Wait() const;

  const Options options_;
  float* staging_ = nullptr;
  PinnedBuffer<StepLoss> host_loss_;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_DEVICE_EVALUATOR_H_
