// Values to measure with.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_RANDOM_FILL_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_RANDOM_FILL_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// Values spread evenly over [-scale, scale), the same ones for the same seed: products of equal
// values draw less power, and are faster, than those of a training run.
void FillRandom(int64_t size, uint32_t seed, float scale, __nv_bfloat16* out, cudaStream_t stream);
void FillRandom(int64_t size, uint32_t seed, float scale, float* out, cudaStream_t stream);
// Values in [0, limit).
void FillRandom(int64_t size, uint32_t seed, int32_t limit, int32_t* out, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_RANDOM_FILL_H_
