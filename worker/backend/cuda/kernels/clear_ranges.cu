#include "worker/backend/cuda/kernels/clear_ranges.h"
#include "worker/backend/cuda/kernels/launch.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void ClearRangesKernel(const ClearedRange* ranges, float* values) {
  const ClearedRange range = ranges[blockIdx.x];
  for (int64_t i = threadIdx.x; i < range.size; i += kThreads) values[range.begin + i] = 0;
}

}  // namespace

void ClearRanges(int64_t count, const ClearedRange* ranges, float* values, cudaStream_t stream) {
  Launch(ClearRangesKernel, dim3(static_cast<unsigned>(count)), dim3(kThreads), 0, stream, ranges,
         values);
}

}  // namespace causeway::worker::cuda
