// Bits that look random, for values of which any will do.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_RANDOM_BITS_CUH_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_RANDOM_BITS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// The finalizer of MurmurHash3.
__device__ __forceinline__ uint32_t Mix(uint32_t value) {
  value ^= value >> 16;
  value *= 0x85ebca6bU;
  value ^= value >> 13;
  value *= 0xc2b2ae35U;
  return value ^ (value >> 16);
}

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_RANDOM_BITS_CUH_
