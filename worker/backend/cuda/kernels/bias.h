// Biases of projections. See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_BIAS_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_BIAS_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// values[r, :] += bias [width], for rows that are `stride` values apart.
void AddBias(int64_t rows, int64_t width, int64_t stride, const __nv_bfloat16* bias,
             __nv_bfloat16* values, cudaStream_t stream);

// dbias [width] = (or += with accumulate) the sum over the rows of dout, `stride` values apart.
// scratch: BiasBackwardScratch(rows, width) values.
int64_t BiasBackwardScratch(int64_t rows, int64_t width);
void BiasBackward(int64_t rows, int64_t width, int64_t stride, const __nv_bfloat16* dout,
                  bool accumulate, float* dbias, float* scratch, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_BIAS_H_
