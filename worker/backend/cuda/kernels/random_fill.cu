#include "worker/backend/cuda/kernels/random_fill.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/random_bits.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 32;

__device__ __forceinline__ uint32_t Random(int64_t index, uint32_t seed) {
  return Mix(static_cast<uint32_t>(index) ^ Mix(seed + static_cast<uint32_t>(index >> 32)));
}

__device__ __forceinline__ float Uniform(uint32_t bits, float scale) {
  return scale * (static_cast<float>(bits >> 8) * 0x1p-23F - 1.0F);
}

// out[i] = value(bits of i).
template <typename T, typename Value>
__device__ __forceinline__ void FillEach(int64_t size, uint32_t seed, T* out, Value value) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += stride) {
    out[i] = value(Random(i, seed));
  }
}

__global__ void FillBf16Kernel(int64_t size, uint32_t seed, float scale, __nv_bfloat16* out) {
  FillEach(size, seed, out,
           [scale](uint32_t bits) { return __float2bfloat16(Uniform(bits, scale)); });
}

__global__ void FillFloatKernel(int64_t size, uint32_t seed, float scale, float* out) {
  FillEach(size, seed, out, [scale](uint32_t bits) { return Uniform(bits, scale); });
}

__global__ void FillTokensKernel(int64_t size, uint32_t seed, int32_t limit, int32_t* out) {
  FillEach(size, seed, out, [limit](uint32_t bits) {
    return static_cast<int32_t>(bits % static_cast<uint32_t>(limit));
  });
}

dim3 Blocks(int64_t size) {
  return dim3(static_cast<unsigned>(std::min(kMostBlocks, (size + kThreads - 1) / kThreads)));
}

}  // namespace

void FillRandom(int64_t size, uint32_t seed, float scale, __nv_bfloat16* out, cudaStream_t stream) {
  Launch(FillBf16Kernel, Blocks(size), dim3(kThreads), 0, stream, size, seed, scale, out);
}

void FillRandom(int64_t size, uint32_t seed, float scale, float* out, cudaStream_t stream) {
  Launch(FillFloatKernel, Blocks(size), dim3(kThreads), 0, stream, size, seed, scale, out);
}

void FillRandom(int64_t size, uint32_t seed, int32_t limit, int32_t* out, cudaStream_t stream) {
  Launch(FillTokensKernel, Blocks(size), dim3(kThreads), 0, stream, size, seed, limit, out);
}

}  // namespace causeway::worker::cuda
