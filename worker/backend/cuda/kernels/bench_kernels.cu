#include <algorithm>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 32;

unsigned Blocks(int64_t size) {
  return static_cast<unsigned>(std::min(kMostBlocks, (size + kThreads - 1) / kThreads));
}

__device__ __forceinline__ int64_t FirstIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t Stride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__global__ void CopyKernel(int64_t vectors, const uint4* from, uint4* to) {
  constexpr int kAtOnce = 4;
  int64_t i = FirstIndex();
  for (; i + (kAtOnce - 1) * Stride() < vectors; i += kAtOnce * Stride()) {
    uint4 values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) values[j] = from[i + j * Stride()];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) to[i + j * Stride()] = values[j];
  }
  for (; i < vectors; i += Stride()) to[i] = from[i];
}

constexpr int kSums = 8;  // Independent of each other, so that products need not wait.

__global__ void MultiplyKernel(int64_t iterations, float* sink) {
  float sums[kSums][4] = {};
  uint32_t left[4];
  uint32_t right[2];
  // Small values of about 1, other ones in every lane.
#pragma unroll
  for (int i = 0; i < 4; ++i) left[i] = 0x3f803f80U ^ (Mix(threadIdx.x + 32 * i) & 0x807f807fU);
#pragma unroll
  for (int i = 0; i < 2; ++i) right[i] = 0x3f803f80U ^ (Mix(threadIdx.x * 7 + i) & 0x807f807fU);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) MmaBf16(sums[j], left, right[0], right[1]);
  }
  float total = 0;
#pragma unroll
  for (int j = 0; j < kSums; ++j) total += sums[j][0] + sums[j][1] + sums[j][2] + sums[j][3];
  total = WarpSum(total);
  if (threadIdx.x == 0) sink[blockIdx.x] = total;
}

}  // namespace

void CopyBytes(int64_t bytes, const void* from, void* to, cudaStream_t stream) {
  const int64_t vectors = bytes / static_cast<int64_t>(sizeof(uint4));
  Launch(CopyKernel, dim3(Blocks(vectors)), dim3(kThreads), 0, stream, vectors,
         static_cast<const uint4*>(from), static_cast<uint4*>(to));
}

int64_t MultiplyInRegisters(int blocks, int64_t iterations, float* sink, cudaStream_t stream) {
  Launch(MultiplyKernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, iterations,
         sink);
  return int64_t{2} * 16 * 8 * 16 * kSums * iterations * blocks * (kThreads / kWarpSize);
}

}  // namespace causeway::worker::cuda
