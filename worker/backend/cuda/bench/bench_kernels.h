// Kernels that only measurements need.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_KERNELS_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// bytes: a multiple of 16; pointers are aligned to 16.
void CopyBytes(int64_t bytes, const void* from, void* to, cudaStream_t stream);

// mma.sync from registers alone, without a pause. Returns the floating-point operations that it
// enqueued; `sink` takes one value per block of blocks, which nobody reads.
int64_t MultiplyInRegisters(int blocks, int64_t iterations, float* sink, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_KERNELS_H_
