// 16 bytes of bf16 at a time, and the shapes of grids over them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cassert>
#include <cstdint>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

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

// Blocks of 8 warps in which 1, 2, 4 or 8 warps share a row, so that every lane keeps its part of
// the row in registers: `chunks` vectors, a row's width apart.

inline constexpr int kRowWarps = 8;
inline constexpr int kRowThreads = kRowWarps * kWarpSize;

struct RowGroups {
  int warps = 1;   // Per row.
  int chunks = 1;  // Per lane: 1, 2, 3, 4 or 8.
  int rows_per_block() const { return kRowWarps / warps; }
};

// The fewest warps whose lanes need at most `chunk_limit` (2 or 4) vectors; all warps, if that is
// not enough.
inline RowGroups ChooseRowGroups(int64_t width, int chunk_limit) {
  assert(width > 0 && width % kVector == 0 && width <= kMaxNormWidth);
  constexpr int64_t kChunkWidth = kWarpSize * kVector;
  RowGroups groups;
  while (groups.warps < kRowWarps && width > groups.warps * kChunkWidth * chunk_limit) {
    groups.warps *= 2;
  }
  const int64_t chunks = (width + groups.warps * kChunkWidth - 1) / (groups.warps * kChunkWidth);
  groups.chunks = chunks <= 4 ? static_cast<int>(chunks) : 8;
  return groups;
}

// Where a thread stands.
struct RowLane {
  int warps;  // Per row.
  int group;  // Which of the block's rows.
  int first;  // The lane's first column.

  __device__ explicit RowLane(int warps_per_row) : warps(warps_per_row) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    group = warp / warps;
    first = (warp % warps * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize) * kVector;
  }
  __device__ int Column(int chunk) const { return first + chunk * warps * kWarpSize * kVector; }
};

// The sum over the threads of each row, in each of them. All threads of the block call it; `slots`
// is shared memory that the call before did not use.
__device__ __forceinline__ float RowSum(float value, const RowLane& lane,
                                        float (&slots)[kRowWarps]) {
  value = WarpSum(value);
  if (lane.warps == 1) return value;
  if (threadIdx.x % kWarpSize == 0) slots[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < lane.warps; ++i) sum += slots[lane.group * lane.warps + i];
  return sum;
}

// Bits that look random, for values of which any will do.

// The finalizer of MurmurHash3.
__device__ __forceinline__ uint32_t Mix(uint32_t value) {
  value ^= value >> 16;
  value *= 0x85ebca6bU;
  value ^= value >> 13;
  value *= 0xc2b2ae35U;
  return value ^ (value >> 16);
}

}  // namespace causeway::worker::cuda
