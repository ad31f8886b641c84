// Zeros in many short ranges of an array. See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_CLEAR_RANGES_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_CLEAR_RANGES_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

struct ClearedRange {
  int64_t begin = 0;
  int64_t size = 0;
};
// `ranges` [count] are on the device.
void ClearRanges(int64_t count, const ClearedRange* ranges, float* values, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_CLEAR_RANGES_H_
