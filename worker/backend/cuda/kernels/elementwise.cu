#include "worker/backend/cuda/kernels/elementwise.h"

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

}  // namespace causeway::worker::cuda
