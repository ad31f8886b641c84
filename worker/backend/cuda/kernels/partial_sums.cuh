// Sums over rows that many blocks have a part of.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_PARTIAL_SUMS_CUH_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_PARTIAL_SUMS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// Blocks that share the rows of a pass with sums over all of them: two or four for each of an
// H200's 132 multiprocessors. A constant, since the sums' bits depend on it.
inline constexpr int64_t kPartialBlocks = 528;

// out[c] = (or += with accumulate) the sum of column c of partials [count, stride], c < width.
void SumPartials(int64_t count, int64_t stride, int64_t width, const float* partials,
                 bool accumulate, float* out, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_PARTIAL_SUMS_CUH_
