// The global norm of the gradient and what follows from it, without the host: a sum per GPU, then
// one norm of all sums. See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_GRADIENT_NORM_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_GRADIENT_NORM_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// On the device; the update kernels read it.
struct GradientNorm {
  double norm = 0;     // Before clipping.
  float factor = 0;    // Multiplies the gradient: 1, or clip_norm / norm if that is less.
  int32_t finite = 0;  // 0: the update kernels change nothing.
};

// *sum = (or += with accumulate) the sum of the squares of `size` values, in double. scratch:
// SumOfSquaresScratch(size) doubles.
int64_t SumOfSquaresScratch(int64_t size);
void SumOfSquares(int64_t size, const float* values, bool accumulate, double* sum, double* scratch,
                  cudaStream_t stream);

// Makes the norm of the square root of the sum of `count` >= 1 sums, in their order. clip_norm <=
// 0: no clipping.
void FinishGradientNorm(int count, const double* sums, double clip_norm, GradientNorm* norm,
                        cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_GRADIENT_NORM_H_
