// Cross entropy with z-loss, forward and backward in one. See kernel_limits.h for what holds for
// all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_CLASSIFIER_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_CLASSIFIER_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// The targets of one micro-batch, on the device.
struct TargetCount {
  int32_t targets = 0;  // Those that are not negative.
  float factor = 0;     // gradient_scale / targets; 0 if there are none.
};
// Counts all targets of a micro-batch, before its first Classifier. total: below 2^31.
void CountTargets(int64_t total, const int32_t* targets, float gradient_scale, TargetCount* count,
                  cudaStream_t stream);

struct ClassifierArguments {
  int64_t rows = 0;        // Rows of this chunk.
  int64_t vocabulary = 0;  // Logits that count.
  int64_t stride = 0;      // Length of a row, with padding, whose values are never looked at.
  float z_loss = 0;
  bool gradient = false;
  // [rows, stride]; with `gradient`, replaced by d/dlogits of count->factor * (loss + z_loss *
  // log_sum_exp^2), which is 0 in the padding and in rows without a target.
  __nv_bfloat16* logits = nullptr;
  const int32_t* targets = nullptr;    // [rows], in [0, vocabulary), or negative: no target.
  const TargetCount* count = nullptr;  // Read with `gradient` alone.
  float* loss = nullptr;               // [rows], in nats; 0 without a target.
  float* log_sum_exp = nullptr;        // [rows]; 0 without a target.
};
void Classifier(const ClassifierArguments& arguments, cudaStream_t stream);

// Means over a step's micro-batches of means over their targets, in nats per token; on the device.
struct StepLoss {
  double total = 0;          // With z-loss.
  double cross_entropy = 0;  // Without.
  int64_t targets = 0;       // All together.
};
// sum = (or += with accumulate) weight * what a micro-batch of `rows` tokens cost.
void ReduceLoss(int64_t rows, const float* loss, const float* log_sum_exp, float z_loss,
                const TargetCount* count, double weight, bool accumulate, StepLoss* sum,
                cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_CLASSIFIER_H_
