// Shared by the attention kernels: tiles of rows in shared memory, how warps read fragments of
// them, and how accumulators go back to memory.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "worker/backend/cuda/kernels/attention.h"
#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"

namespace causeway::worker::cuda {

// Query rows, or key rows in the pass over keys, of one thread block.
inline constexpr int kAttentionBlockRows = 128;
inline constexpr float kLog2OfE = 1.4426950408889634F;

// The same for all lanes, and known to be so by the compiler.
__device__ __forceinline__ int UniformWarpIndex() {
  return __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x / 32), 0);
}

// Rows of kHeadDim bf16 in shared memory. The 16-byte chunks of a row are exchanged among each
// other, depending on the row, so that neither eight rows of a matrix load nor eight chunks of a
// row meet in a bank.
template <int kHeadDim>
struct Tile {
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kRowBytes = 2 * kHeadDim;
  static_assert(kHeadDim % 32 == 0);

  // XOR-ed to a chunk's number. It has a period of 8 rows.
  static __device__ __forceinline__ int Swizzle(int row) {
    return kHeadDim % 64 == 0 ? row & 7 : (row >> 1) & 3;
  }
  static __device__ __forceinline__ int Offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ Swizzle(row)) << 4);
  }

  // Begins to copy kRows rows, `stride` values apart. Rows from `present_rows` on and columns from
  // `head_dim` on become zeros.
  template <int kRows, int kThreads>
  static __device__ __forceinline__ void Copy(unsigned char* tile, const __nv_bfloat16* rows,
                                              int64_t stride, int present_rows, int head_dim) {
    ForEachChunk<kRows, kThreads>(rows, stride, [&](int row, int chunk, int offset, auto* values) {
      CopyAsync16(tile + offset, values, row < present_rows && chunk * 8 < head_dim);
    });
  }

  // The way back, of what is present.
  template <int kRows, int kThreads>
  static __device__ __forceinline__ void Store(const unsigned char* tile, __nv_bfloat16* rows,
                                               int64_t stride, int present_rows, int head_dim) {
    ForEachChunk<kRows, kThreads>(rows, stride, [&](int row, int chunk, int offset, auto* values) {
      if (row < present_rows && chunk * 8 < head_dim) {
        *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(tile + offset);
      }
    });
  }

  // Writes a warp's accumulators of 16 rows, times factors[0] (rows 0 .. 7) and factors[1].
  static __device__ __forceinline__ void PutAccumulators(unsigned char* tile, int first_row,
                                                         const float (&values)[kChunks][4],
                                                         const float (&factors)[2]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 8 * half + lane / 4;
        *reinterpret_cast<uint32_t*>(tile + Offset(row, chunk) + lane % 4 * 4) = PackBf16(
            values[chunk][2 * half] * factors[half], values[chunk][2 * half + 1] * factors[half]);
      }
    }
  }

 private:
  // Calls visit(row, chunk, offset in the tile, pointer to the values) for this thread's share of
  // kRows rows. Neighbours take neighbouring chunks; addresses need few registers.
  template <int kRows, int kThreads, typename Value, typename Visit>
  static __device__ __forceinline__ void ForEachChunk(Value* rows, int64_t stride,
                                                      const Visit& visit) {
    constexpr int kNeighbours = kChunks & -kChunks;
    constexpr int kRowsAtOnce = kThreads / kNeighbours;
    static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    const int first_row = static_cast<int>(threadIdx.x) / kNeighbours;
    const int first_chunk = static_cast<int>(threadIdx.x) % kNeighbours;
    Value* values = rows + first_row * stride + first_chunk * 8;
#pragma unroll
    for (int row = 0; row < kRows; row += kRowsAtOnce) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += kNeighbours) {
        visit(first_row + row, first_chunk + chunk,
              Offset(first_row, first_chunk + chunk) + row * kRowBytes, values + chunk * 8);
      }
      values += kRowsAtOnce * stride;
    }
  }
};

// Where a lane points the matrix loads of a tile to. Loads take 16 rows and 16 columns at a time.
template <int kHeadDim>
class MatrixRows {
 public:
  // For LoadMatrixX4 of the left operand [rows, head_dim], and for LoadMatrixX4Transposed of the
  // right operand [inner, columns] = [rows, head_dim].
  static __device__ __forceinline__ MatrixRows Plain(const unsigned char* tile, int first_row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return MatrixRows(tile, first_row + lane % 16, lane / 16);
  }
  // For LoadMatrixX4 of the right operand [columns, inner] = [rows, head_dim]: registers 0 and 1
  // are the fragment of the first eight columns, 2 and 3 of the others.
  static __device__ __forceinline__ MatrixRows AsColumns(const unsigned char* tile, int first_row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return MatrixRows(tile, first_row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }

  // `row` is a multiple of 8; the load's columns begin at 16 * pair.
  __device__ __forceinline__ const void* At(int row, int pair) const {
    return base_ + row * Tile<kHeadDim>::kRowBytes + (((2 * pair) ^ chunk_) << 4);
  }

 private:
  __device__ __forceinline__ MatrixRows(const unsigned char* tile, int row, int half)
      : base_(tile + row * Tile<kHeadDim>::kRowBytes),
        chunk_(half ^ Tile<kHeadDim>::Swizzle(row)) {}

  const unsigned char* base_;
  int chunk_;
};

// Two accumulators side by side, 16 columns, as the left operand of the next product.
__device__ __forceinline__ void PackLeftOperand(uint32_t (&fragment)[4], const float (&left)[4],
                                                const float (&right)[4]) {
  fragment[0] = PackBf16(left[0], left[1]);
  fragment[1] = PackBf16(left[2], left[3]);
  fragment[2] = PackBf16(right[0], right[1]);
  fragment[3] = PackBf16(right[2], right[3]);
}

// Accumulators of zeros.
template <int kTiles, int kColumns>
__device__ __forceinline__ void Clear(float (&values)[kTiles][kColumns][4]) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[m][n][i] = 0;
    }
  }
}

// Gives `masked` to what a query of a tile of 16, from `first_query` on, may not see of the keys
// from `first_key` on: later ones, and those of other documents.
template <int kColumns>
__device__ __forceinline__ void MaskKeys(float (&values)[kColumns][4], int first_query,
                                         int first_key, const int32_t* starts, int length,
                                         float masked) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + lane / 4 + 8 * half;
    const int start = starts == nullptr ? 0 : starts[min(query, length - 1)];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = first_key + 8 * n + lane % 4 * 2 + i;
        if (key > query || key < start) values[n][2 * half + i] = masked;
      }
    }
  }
}

// The sum of the products of two pairs.
__device__ __forceinline__ float DotBf16(uint32_t a, uint32_t b) {
  // A bf16 is the upper half of the float of the same value.
  return __uint_as_float(a << 16) * __uint_as_float(b << 16) +
         __uint_as_float(a & 0xffff0000U) * __uint_as_float(b & 0xffff0000U);
}

// A call as kernels take it, and where things lie in the packed layout; strides are in values.
struct AttentionKernelCall : AttentionCall {
  explicit AttentionKernelCall(const AttentionCall& call)
      : AttentionCall(call),
        scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(call.shape.head_dim)))) {}

  float scale;

  __device__ __forceinline__ int64_t qkv_stride() const {
    return static_cast<int64_t>(shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  }
  __device__ __forceinline__ int64_t out_stride() const {
    return static_cast<int64_t>(shape.heads) * shape.head_dim;
  }
  __device__ __forceinline__ int64_t Query(int sequence, int head) const {
    return static_cast<int64_t>(sequence) * shape.length * qkv_stride() + head * shape.head_dim;
  }
  __device__ __forceinline__ int64_t Key(int sequence, int kv_head) const {
    return Query(sequence, shape.heads + kv_head);
  }
  __device__ __forceinline__ int64_t Value(int sequence, int kv_head) const {
    return Query(sequence, shape.heads + shape.kv_heads + kv_head);
  }
  __device__ __forceinline__ int64_t Out(int sequence, int head) const {
    return static_cast<int64_t>(sequence) * shape.length * out_stride() + head * shape.head_dim;
  }
  // Of a sequence's document starts; null where there are none.
  __device__ __forceinline__ const int32_t* Starts(int sequence) const {
    return document_starts == nullptr
               ? nullptr
               : document_starts + static_cast<int64_t>(sequence) * shape.length;
  }
  // The row of log_sum_exp and delta.
  __device__ __forceinline__ int64_t Row(int sequence, int head) const {
    return (static_cast<int64_t>(sequence) * shape.heads + head) * shape.length;
  }
};

// How a shape of attention becomes a launch.

// Calls launch.operator()<D>() with the kernels' head_dim D: the shape's, or the next larger one,
// whose further columns are zeros. A shape that AttentionRefusal refuses ends the program.
template <typename LaunchFunction>
void DispatchHeadDim(const AttentionShape& shape, const LaunchFunction& launch) {
  if (const char* const refusal = AttentionRefusal(shape); refusal != nullptr) {
    std::fprintf(stderr, "attention: %s\n", refusal);
    std::abort();
  }
  if (shape.head_dim <= 32) {
    launch.template operator()<32>();
  } else if (shape.head_dim <= 64) {
    launch.template operator()<64>();
  } else if (shape.head_dim <= 96) {
    launch.template operator()<96>();
  } else {
    launch.template operator()<128>();
  }
}

// The pair of a sequence and a head that a block of LaunchAttention is for. The last pass may have
// blocks for pairs that do not exist.
__device__ __forceinline__ int BlockColumn() {
  return static_cast<int>(blockIdx.z * gridDim.x + blockIdx.x);
}

// What a block that goes over keys is for: up to 128 queries of a head.
struct QueryBlock {
  int sequence;  // May be one that does not exist.
  int head;
  int kv_head;
  int first_row;
  int rows;

  __device__ __forceinline__ explicit QueryBlock(const AttentionShape& shape)
      : sequence(BlockColumn() / shape.heads),
        head(BlockColumn() % shape.heads),
        kv_head(head / (shape.heads / shape.kv_heads)),
        // The longest rows first: short blocks fill the gaps at the end.
        first_row(static_cast<int>(gridDim.y - 1 - blockIdx.y) * kAttentionBlockRows),
        rows(min(kAttentionBlockRows, shape.length - first_row)) {}
};

// One block per 128 rows of each of `columns` pairs of a sequence and a head; all rows of
// `at_a_time` pairs, then those of the next ones.
template <typename Kernel, typename Call>
void LaunchAttention(Kernel* kernel, int columns, int at_a_time, int length, int threads,
                     int shared_bytes, cudaStream_t stream, const Call& call) {
  const dim3 grid(static_cast<unsigned>(at_a_time),
                  static_cast<unsigned>((length + kAttentionBlockRows - 1) / kAttentionBlockRows),
                  static_cast<unsigned>((columns + at_a_time - 1) / at_a_time));
  Launch(kernel, grid, dim3(static_cast<unsigned>(threads)), static_cast<size_t>(shared_bytes),
         stream, call);
}

}  // namespace causeway::worker::cuda
