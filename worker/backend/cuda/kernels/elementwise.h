// Casts, fills and sums. See kernel_limits.h for what holds for all kernels; `size` is any number
// here.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ELEMENTWISE_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ELEMENTWISE_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

void CastToBf16(int64_t size, const float* values, __nv_bfloat16* out, cudaStream_t stream);
void CastToFloat(int64_t size, const __nv_bfloat16* values, float* out, cudaStream_t stream);
void Fill(int64_t size, float value, float* out, cudaStream_t stream);
// sum += values.
void Add(int64_t size, const __nv_bfloat16* values, __nv_bfloat16* sum, cudaStream_t stream);
void Add(int64_t size, const float* values, float* sum, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ELEMENTWISE_H_
