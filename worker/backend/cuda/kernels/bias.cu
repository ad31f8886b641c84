#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
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
