#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;
constexpr int kAtOnce = 4;                                        // Vectors that a thread loads.
constexpr int64_t kTileValues = int64_t{kThreads} * 4 * kAtOnce;  // That a block loads.
constexpr int64_t kMaxBlocks = 2112;                              // 16 on each of 132.

__device__ __forceinline__ double SquareOf(const float4& v) {
  const double x = v.x, y = v.y, z = v.z, w = v.w;
  return (x * x + y * y) + (z * z + w * w);
}

// In double: a gradient whose squares overflow fp32 still has a norm.
__global__ __launch_bounds__(kThreads) void SquaresKernel(int64_t size, const float* values,
                                                          double* partials) {
  __shared__ double slots[kThreads / kWarpSize];
  double sum = 0;
  const int64_t thread = int64_t{threadIdx.x} * 4;
  for (int64_t tile = blockIdx.x * kTileValues; tile < size; tile += gridDim.x * kTileValues) {
    if (tile + kTileValues <= size) {
      float4 loaded[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        loaded[k] = LoadFloats(values + tile + k * kThreads * 4 + thread);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) sum += SquareOf(loaded[k]);
      continue;
    }
    for (int64_t i = tile + threadIdx.x; i < size; i += kThreads) {
      const double value = values[i];
      sum += value * value;
    }
  }
  sum = BlockSum<kThreads>(sum, slots);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ __launch_bounds__(kFinishThreads) void SumKernel(int count, const double* partials,
                                                            bool accumulate, double* out) {
  __shared__ double slots[kFinishThreads / kWarpSize];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kFinishThreads) sum += partials[i];
  sum = BlockSum<kFinishThreads>(sum, slots);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

__global__ void FinishKernel(int count, const double* sums, double clip_norm, GradientNorm* out) {
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += sums[i];
  GradientNorm result;
  result.norm = sqrt(sum);
  result.finite = isfinite(result.norm) ? 1 : 0;
  const bool clipped = clip_norm > 0 && result.norm > clip_norm;
  result.factor = clipped ? static_cast<float>(clip_norm / result.norm) : 1.0F;
  *out = result;
}

unsigned Blocks(int64_t size) {
  return static_cast<unsigned>(std::min<int64_t>(BlocksFor(size, kTileValues), kMaxBlocks));
}

}  // namespace

int64_t SumOfSquaresScratch(int64_t size) { return Blocks(size); }

void SumOfSquares(int64_t size, const float* values, bool accumulate, double* sum, double* scratch,
                  cudaStream_t stream) {
  CheckAlignment(values);
  const unsigned blocks = Blocks(size);
  Launch(SquaresKernel, blocks, kThreads, 0, stream, size, values, scratch);
  Launch(SumKernel, 1, kFinishThreads, 0, stream, static_cast<int>(blocks), scratch, accumulate,
         sum);
}

void FinishGradientNorm(int count, const double* sums, double clip_norm, GradientNorm* norm,
                        cudaStream_t stream) {
  Launch(FinishKernel, 1, kWarpSize, 0, stream, count, sums, clip_norm, norm);
}

}  // namespace causeway::worker::cuda
