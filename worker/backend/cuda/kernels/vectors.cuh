// 16 bytes of bf16 at a time, and the shapes of grids over them.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_VECTORS_CUH_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_VECTORS_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cassert>
#include <cstdint>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/kernel_limits.h"

namespace causeway::worker::cuda {

using Bf16 = __nv_bfloat16;
inline constexpr int kVector = static_cast<int>(kVectorValues);

// --- On the host ---
inline void CheckAligned(const void* pointer) {
  assert(reinterpret_cast<uintptr_t>(pointer) % 16 == 0);
  (void)pointer;
}
template <typename... Pointers>
void CheckAlignment(Pointers... pointers) {
  (CheckAligned(pointers), ...);
}
inline unsigned BlocksFor(int64_t items, int64_t items_per_block) {
  const int64_t blocks = (items + items_per_block - 1) / items_per_block;
  assert(blocks < (int64_t{1} << 31));
  return static_cast<unsigned>(blocks);
}
// Vectors of a tensor [rows, width], one per thread: what a 32-bit index reaches.
inline uint32_t VectorsOf(int64_t rows, int64_t width) {
  const int64_t vectors = rows * (width / kVector);
  assert(width % kVector == 0 && vectors < int64_t{1} << 31);
  return static_cast<uint32_t>(vectors);
}
inline uint32_t VectorsOfRow(int64_t width) { return static_cast<uint32_t>(width / kVector); }

// --- On the device ---
__device__ __forceinline__ uint4 LoadVector(const Bf16* values) {
  return *reinterpret_cast<const uint4*>(values);
}
__device__ __forceinline__ void StoreVector(const uint4& vector, Bf16* values) {
  *reinterpret_cast<uint4*>(values) = vector;
}
__device__ __forceinline__ float4 LoadFloats(const float* values) {
  return *reinterpret_cast<const float4*>(values);
}
__device__ __forceinline__ void StoreFloats(const float4& vector, float* values) {
  *reinterpret_cast<float4*>(values) = vector;
}

__device__ __forceinline__ void Unpack(const uint4& vector, float (&values)[kVector]) {
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}
__device__ __forceinline__ uint4 Pack(const float (&values)[kVector]) {
  return make_uint4(PackBf16(values[0], values[1]), PackBf16(values[2], values[3]),
                    PackBf16(values[4], values[5]), PackBf16(values[6], values[7]));
}
__device__ __forceinline__ void LoadUnpacked(const Bf16* from, float (&values)[kVector]) {
  Unpack(LoadVector(from), values);
}
__device__ __forceinline__ void LoadUnpacked(const float* from, float (&values)[kVector]) {
  const float4 low = LoadFloats(from);
  const float4 high = LoadFloats(from + 4);
  values[0] = low.x;
  values[1] = low.y;
  values[2] = low.z;
  values[3] = low.w;
  values[4] = high.x;
  values[5] = high.y;
  values[6] = high.z;
  values[7] = high.w;
}
__device__ __forceinline__ void StorePacked(const float (&values)[kVector], Bf16* to) {
  StoreVector(Pack(values), to);
}
__device__ __forceinline__ void StorePacked(const float (&values)[kVector], float* to) {
  StoreFloats(make_float4(values[0], values[1], values[2], values[3]), to);
  StoreFloats(make_float4(values[4], values[5], values[6], values[7]), to + 4);
}

// e^x to 2 units in the last place near 0, by the machine's 2^x.
__device__ __forceinline__ float FastExp(float x) { return Exp2(x * 1.44269504088896F); }

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_VECTORS_CUH_
