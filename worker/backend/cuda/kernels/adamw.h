// AdamW (common/optim/adamw.h) on fp32 weights and moments, with a bf16 copy of the weights for the
// next forward pass: the bits of the CPU's update. See kernel_limits.h for what holds for all
// kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ADAMW_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ADAMW_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "common/optim/adamw.h"
#include "worker/backend/cuda/kernels/gradient_norm.h"

namespace causeway::worker::cuda {

// A run of values that one block updates. Offsets and size are multiples of 8 values.
struct AdamWSlice {
  int64_t state = 0;     // Where it begins in the master weights and first moments.
  int64_t second = 0;    // In the second moments.
  int64_t gradient = 0;  // In the gradients.
  int64_t weight = 0;    // In the bf16 weights.
  int32_t size = 0;
  float weight_decay = 0;  // 0 for what does not decay.
};
inline constexpr int64_t kAdamWSliceValues = 8192;

// Appends `size` values from the places of `first` on in slices of at most kAdamWSliceValues.
void AppendAdamWSlices(const AdamWSlice& first, int64_t size, std::vector<AdamWSlice>* slices);

struct AdamWArguments {
  int64_t count = 0;                       // Number of slices; they do not overlap.
  const AdamWSlice* slices = nullptr;      // On the device, as all that follows.
  const AdamWStep<float>* step = nullptr;  // Constants of this step.
  const GradientNorm* norm = nullptr;      // Nothing changes unless it is finite.
  const float* gradient = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  __nv_bfloat16* weight = nullptr;  // master, rounded.
};
void AdamWUpdate(const AdamWArguments& arguments, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ADAMW_H_
