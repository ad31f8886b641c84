// Casts, sums and zeros; values to measure with, and what only measurements need; biases.
#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ void Assign(float value, Bf16* to) { *to = __float2bfloat16_rn(value); }
__device__ __forceinline__ void Assign(float value, float* to) { *to = value; }

// out = values, or += with kAdd. Thread i has values 8 i .. 8 i + 7.
template <bool kAdd, typename To>
__global__ __launch_bounds__(kThreads) void CombineKernel(int64_t size, const float* values,
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
    float value = values[i];
    if constexpr (kAdd) value += out[i];
    Assign(value, out + i);
  }
}

template <bool kAdd, typename To>
void Combine(int64_t size, const float* values, To* out, cudaStream_t stream) {
  CheckAlignment(values, out);
  Launch(CombineKernel<kAdd, To>, BlocksFor(size, kThreads * kVector), kThreads, 0, stream, size,
         values, out);
}

}  // namespace

void CastToBf16(int64_t size, const float* values, Bf16* out, cudaStream_t stream) {
  Combine<false>(size, values, out, stream);
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

constexpr int64_t kMostBlocks = 132 * 32;

unsigned Blocks(int64_t size) {
  return static_cast<unsigned>(std::min(kMostBlocks, (size + kThreads - 1) / kThreads));
}

__device__ __forceinline__ int64_t FirstIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t Stride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

template <typename T>
__global__ void FillKernel(int64_t size, uint32_t seed, float scale, T* out) {
  for (int64_t i = FirstIndex(); i < size; i += Stride()) {
    const uint32_t bits =
        Mix(static_cast<uint32_t>(i) ^ Mix(seed + static_cast<uint32_t>(i >> 32)));
    Assign(scale * (static_cast<float>(bits >> 8) * 0x1p-23F - 1.0F), out + i);
  }
}

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

void FillRandom(int64_t size, uint32_t seed, float scale, Bf16* out, cudaStream_t stream) {
  Launch(FillKernel<Bf16>, Blocks(size), kThreads, 0, stream, size, seed, scale, out);
}

void FillRandom(int64_t size, uint32_t seed, float scale, float* out, cudaStream_t stream) {
  Launch(FillKernel<float>, Blocks(size), kThreads, 0, stream, size, seed, scale, out);
}

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

namespace {

constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;
constexpr int kColumns = kLanes * kVector;  // Columns that one block sums.

__global__ __launch_bounds__(kThreads) void AddBiasKernel(uint32_t vectors,
                                                          uint32_t vectors_per_row, int64_t stride,
                                                          const Bf16* bias, Bf16* values) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const uint32_t row = i / vectors_per_row;
  const uint32_t column = (i - row * vectors_per_row) * kVector;
  Bf16* const at = values + row * stride + column;
  float value[kVector], add[kVector];
  LoadUnpacked(at, value);
  LoadUnpacked(bias + column, add);
#pragma unroll
  for (int k = 0; k < kVector; ++k) value[k] += add[k];
  StorePacked(value, at);
}

// Block (x, y) sums columns x * 256 .. of rows y * rows_per_block ..; warp w takes every eighth of
// them from w on.
__global__ __launch_bounds__(kThreads) void ColumnSumsKernel(int64_t rows, int64_t width,
                                                             int64_t stride, int64_t rows_per_block,
                                                             const Bf16* values, float* partials) {
  alignas(16) __shared__ float sums[kWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane * kVector;
  const int64_t begin = blockIdx.y * rows_per_block;
  const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
  float sum[kVector] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + warp; row < end; row += kWarps) {
      float value[kVector];
      LoadUnpacked(values + row * stride + column, value);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[i] += value[i];
    }
  }
  StorePacked(sum, sums[warp] + lane * kVector);
  __syncthreads();
  const int64_t mine = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  if (mine >= width) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i][threadIdx.x];
  partials[blockIdx.y * width + mine] = total;
}

constexpr int64_t kMinRowsPerBlock = 64;
constexpr int64_t kMaxRowBlocks = 128;

int64_t RowsPerBlock(int64_t rows) {
  return std::max(kMinRowsPerBlock, (rows + kMaxRowBlocks - 1) / kMaxRowBlocks);
}

}  // namespace

void AddBias(int64_t rows, int64_t width, int64_t stride, const Bf16* bias, Bf16* values,
             cudaStream_t stream) {
  CheckAlignment(bias, values);
  assert(stride % kVector == 0);
  const uint32_t vectors = VectorsOf(rows, width);
  Launch(AddBiasKernel, BlocksFor(vectors, kThreads), kThreads, 0, stream, vectors,
         VectorsOfRow(width), stride, bias, values);
}

int64_t BiasBackwardScratch(int64_t rows, int64_t width) {
  return BlocksFor(rows, RowsPerBlock(rows)) * width;
}

void BiasBackward(int64_t rows, int64_t width, int64_t stride, const Bf16* dout, bool accumulate,
                  float* dbias, float* scratch, cudaStream_t stream) {
  CheckAlignment(dout, dbias, scratch);
  assert(width % kVector == 0 && stride % kVector == 0);
  const int64_t rows_per_block = RowsPerBlock(rows);
  const unsigned row_blocks = BlocksFor(rows, rows_per_block);
  Launch(ColumnSumsKernel, dim3(BlocksFor(width, kColumns), row_blocks), kThreads, 0, stream, rows,
         width, stride, rows_per_block, dout, scratch);
  SumPartials(row_blocks, width, width, scratch, accumulate, dbias, stream);
}

namespace {

constexpr int kPartialColumns = 32;
constexpr int kPartialWarps = 16;

// A warp takes every kPartialWarps-th row of 32 columns; the warps' sums are added in order.
__global__ __launch_bounds__(kPartialColumns* kPartialWarps) void SumPartialsKernel(
    int64_t count, int64_t stride, int64_t width, const float* partials, bool accumulate,
    float* out) {
  __shared__ float sums[kPartialWarps][kPartialColumns];
  const int lane = static_cast<int>(threadIdx.x) % kPartialColumns;
  const int warp = static_cast<int>(threadIdx.x) / kPartialColumns;
  const int64_t column = int64_t{blockIdx.x} * kPartialColumns + lane;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t row = warp; row < count; row += kPartialWarps)
      sum += partials[row * stride + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
#pragma unroll
  for (int i = 1; i < kPartialWarps; ++i) sum += sums[i][lane];
  out[column] = accumulate ? out[column] + sum : sum;
}

}  // namespace

void SumPartials(int64_t count, int64_t stride, int64_t width, const float* partials,
                 bool accumulate, float* out, cudaStream_t stream) {
  Launch(SumPartialsKernel, BlocksFor(width, kPartialColumns), kPartialColumns * kPartialWarps, 0,
         stream, count, stride, width, partials, accumulate, out);
}

}  // namespace causeway::worker::cuda
