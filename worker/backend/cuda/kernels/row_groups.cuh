// Blocks of 8 warps in which 1, 2, 4 or 8 warps share a row, so that every lane keeps its part of
// the row in registers: `chunks` vectors, a row's width apart.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ROW_GROUPS_CUH_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ROW_GROUPS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {

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

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ROW_GROUPS_CUH_
