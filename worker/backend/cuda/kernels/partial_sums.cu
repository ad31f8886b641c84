#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/partial_sums.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kColumns = 32;
constexpr int kWarps = 16;

// A warp takes every kWarps-th row of 32 columns; the warps' sums are added in order.
__global__ __launch_bounds__(kColumns* kWarps) void SumPartialsKernel(int64_t count, int64_t stride,
                                                                      int64_t width,
                                                                      const float* partials,
                                                                      bool accumulate, float* out) {
  __shared__ float sums[kWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kColumns;
  const int warp = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t row = warp; row < count; row += kWarps) sum += partials[row * stride + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum += sums[i][lane];
  out[column] = accumulate ? out[column] + sum : sum;
}

}  // namespace

void SumPartials(int64_t count, int64_t stride, int64_t width, const float* partials,
                 bool accumulate, float* out, cudaStream_t stream) {
  Launch(SumPartialsKernel, BlocksFor(width, kColumns), kColumns * kWarps, 0, stream, count, stride,
         width, partials, accumulate, out);
}

}  // namespace causeway::worker::cuda
