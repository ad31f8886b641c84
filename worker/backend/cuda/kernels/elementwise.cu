#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float ToFloat(Bf16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ void Assign(float value, Bf16* to) { *to = __float2bfloat16_rn(value); }
__device__ __forceinline__ void Assign(float value, float* to) { *to = value; }

// out = values, or += with kAdd. Thread i has values 8 i .. 8 i + 7.
template <bool kAdd, typename From, typename To>
__global__ __launch_bounds__(kThreads) void CombineKernel(int64_t size, const From* values,
                                                          To* out) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (at + kVector <= size) {
    float value[kVector];
    LoadUnpacked(values + at, value);
    if constexpr (kAdd) {
      float sum[kVector];
      LoadUnpacked(out + at, sum);
#pragma unroll
      for (int i = 0; i < kVector; ++i) value[i] += sum[i];
    }
    StorePacked(value, out + at);
    return;
  }
  for (int64_t i = at; i < size; ++i) {
    const float value = ToFloat(values[i]);
    Assign(kAdd ? ToFloat(out[i]) + value : value, out + i);
  }
}

__global__ __launch_bounds__(kThreads) void FillKernel(int64_t size, float value, float* out) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (at + 4 <= size) {
    StoreFloats(make_float4(value, value, value, value), out + at);
    return;
  }
  for (int64_t i = at; i < size; ++i) out[i] = value;
}

template <bool kAdd, typename From, typename To>
void Combine(int64_t size, const From* values, To* out, cudaStream_t stream) {
  CheckAlignment(values, out);
  Launch(CombineKernel<kAdd, From, To>, BlocksFor(size, kThreads * kVector), kThreads, 0, stream,
         size, values, out);
}

}  // namespace

void CastToBf16(int64_t size, const float* values, Bf16* out, cudaStream_t stream) {
  Combine<false>(size, values, out, stream);
}

void CastToFloat(int64_t size, const Bf16* values, float* out, cudaStream_t stream) {
  Combine<false>(size, values, out, stream);
}

void Fill(int64_t size, float value, float* out, cudaStream_t stream) {
  CheckAlignment(out);
  Launch(FillKernel, BlocksFor(size, kThreads * 4), kThreads, 0, stream, size, value, out);
}

void Add(int64_t size, const Bf16* values, Bf16* sum, cudaStream_t stream) {
  Combine<true>(size, values, sum, stream);
}

void Add(int64_t size, const float* values, float* sum, cudaStream_t stream) {
  Combine<true>(size, values, sum, stream);
}

namespace {

constexpr int kRangeThreads = 64;

__global__ void ClearRangesKernel(const ClearedRange* ranges, float* values) {
  const ClearedRange range = ranges[blockIdx.x];
  for (int64_t i = threadIdx.x; i < range.size; i += kRangeThreads) values[range.begin + i] = 0;
}

}  // namespace

void ClearRanges(int64_t count, const ClearedRange* ranges, float* values, cudaStream_t stream) {
  Launch(ClearRangesKernel, dim3(static_cast<unsigned>(count)), dim3(kRangeThreads), 0, stream,
         ranges, values);
}

namespace {

constexpr int64_t kMostFillBlocks = 132 * 32;

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

dim3 FillBlocks(int64_t size) {
  return dim3(static_cast<unsigned>(std::min(kMostFillBlocks, (size + kThreads - 1) / kThreads)));
}

}  // namespace

void FillRandom(int64_t size, uint32_t seed, float scale, __nv_bfloat16* out, cudaStream_t stream) {
  Launch(FillBf16Kernel, FillBlocks(size), dim3(kThreads), 0, stream, size, seed, scale, out);
}

void FillRandom(int64_t size, uint32_t seed, float scale, float* out, cudaStream_t stream) {
  Launch(FillFloatKernel, FillBlocks(size), dim3(kThreads), 0, stream, size, seed, scale, out);
}

void FillRandom(int64_t size, uint32_t seed, int32_t limit, int32_t* out, cudaStream_t stream) {
  Launch(FillTokensKernel, FillBlocks(size), dim3(kThreads), 0, stream, size, seed, limit, out);
}

}  // namespace causeway::worker::cuda
