#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr double kNormEpsilon = 1e-7;
// Values of a matrix per block that sums or scales it.
constexpr int64_t kTileValues = 16384;

// Momentum and update of one value, with the operations of the CPU's and none of them fused.
__device__ __forceinline__ float Momentum(const MuonConstants& constants, float gradient,
                                          float& moment) {
  moment = __fadd_rn(__fmul_rn(constants.momentum, moment), gradient);
  return __fadd_rn(gradient, __fmul_rn(constants.momentum, moment));
}

__global__ __launch_bounds__(kThreads) void MomentumKernel(MuonArguments a, const float* gradient,
                                                           float* moment, Bf16* updates) {
  const GradientNorm norm = *a.norm;
  if (norm.finite == 0) return;
  const MuonConstants constants = *a.constants;
  const MuonSlice slice = a.slices[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < slice.size; i += kThreads * kVector) {
    float g[kVector], m[kVector];
    LoadUnpacked(gradient + slice.gradient + i, g);
    LoadUnpacked(moment + slice.state + i, m);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      g[k] = Momentum(constants, __fmul_rn(g[k], norm.factor), m[k]);
    }
    StorePacked(m, moment + slice.state + i);
    StorePacked(g, updates + slice.update + i);
  }
}

__global__ __launch_bounds__(kThreads) void UpdateKernel(MuonArguments a, const Bf16* updates,
                                                         float* master, Bf16* weight) {
  if (a.norm->finite == 0) return;
  const MuonConstants constants = *a.constants;
  const MuonSlice slice = a.slices[blockIdx.x];
  const float decay = __fmul_rn(constants.learning_rate, constants.weight_decay);
  const float step_size =
      static_cast<float>(__dmul_rn(static_cast<double>(constants.learning_rate), slice.shape));
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < slice.size; i += kThreads * kVector) {
    float w[kVector], update[kVector];
    LoadUnpacked(master + slice.state + i, w);
    LoadUnpacked(updates + slice.update + i, update);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      w[k] = __fsub_rn(w[k], __fmul_rn(decay, w[k]));
      w[k] = __fsub_rn(w[k], __fmul_rn(step_size, update[k]));
    }
    StorePacked(w, master + slice.state + i);
    StorePacked(w, weight + slice.weight + i);
  }
}

// Block (x, y): tile x of matrix y.
__global__ __launch_bounds__(kThreads) void MatrixSquaresKernel(int64_t size, const Bf16* matrices,
                                                                double* partials) {
  __shared__ double slots[kThreads / kWarpSize];
  const Bf16* const matrix = matrices + blockIdx.y * size;
  const int64_t begin = blockIdx.x * kTileValues;
  const int64_t end = begin + kTileValues < size ? begin + kTileValues : size;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + int64_t{threadIdx.x} * kVector; i < end; i += kThreads * kVector) {
    float value[kVector];
    LoadUnpacked(matrix + i, value);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      sum += static_cast<double>(value[k]) * static_cast<double>(value[k]);
    }
  }
  sum = BlockSum<kThreads>(sum, slots);
  if (threadIdx.x == 0) partials[blockIdx.y * int64_t{gridDim.x} + blockIdx.x] = sum;
}

// A block per matrix; scales [count].
__global__ __launch_bounds__(kThreads) void ScalesKernel(int tiles, const double* partials,
                                                         double* scales) {
  __shared__ double slots[kThreads / kWarpSize];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < tiles; i += kThreads) {
    sum += partials[blockIdx.x * int64_t{tiles} + i];
  }
  sum = BlockSum<kThreads>(sum, slots);
  if (threadIdx.x == 0) scales[blockIdx.x] = 1.0 / (sqrt(sum) + kNormEpsilon);
}

__global__ __launch_bounds__(kThreads) void ScaleKernel(int64_t size, const double* scales,
                                                        Bf16* matrices) {
  const float scale = static_cast<float>(scales[blockIdx.y]);
  Bf16* const matrix = matrices + blockIdx.y * size;
  const int64_t begin = blockIdx.x * kTileValues;
  const int64_t end = begin + kTileValues < size ? begin + kTileValues : size;
#pragma unroll 4
  for (int64_t i = begin + int64_t{threadIdx.x} * kVector; i < end; i += kThreads * kVector) {
    float value[kVector];
    LoadUnpacked(matrix + i, value);
#pragma unroll
    for (int k = 0; k < kVector; ++k) value[k] *= scale;
    StorePacked(value, matrix + i);
  }
}

}  // namespace

void AppendMuonSlices(const MuonSlice& first, int64_t size, std::vector<MuonSlice>* slices) {
  assert(first.state % kVector == 0 && first.gradient % kVector == 0 &&
         first.weight % kVector == 0 && first.update % kVector == 0 && size % kVector == 0);
  for (int64_t at = 0; at < size; at += kMuonSliceValues) {
    MuonSlice slice = first;
    slice.state += at;
    slice.gradient += at;
    slice.weight += at;
    slice.update += at;
    slice.size = static_cast<int32_t>(std::min(kMuonSliceValues, size - at));
    slices->push_back(slice);
  }
}

void MuonMomentum(const MuonArguments& a, const float* gradient, float* moment, Bf16* updates,
                  cudaStream_t stream) {
  CheckAlignment(gradient, moment, updates);
  Launch(MomentumKernel, BlocksFor(a.count, 1), kThreads, 0, stream, a, gradient, moment, updates);
}

void MuonUpdate(const MuonArguments& a, const Bf16* updates, float* master, Bf16* weight,
                cudaStream_t stream) {
  CheckAlignment(updates, master, weight);
  Launch(UpdateKernel, BlocksFor(a.count, 1), kThreads, 0, stream, a, updates, master, weight);
}

int64_t MuonNormalizeScratch(int64_t count, int64_t size) {
  return count * (BlocksFor(size, kTileValues) + int64_t{1});
}

void MuonNormalize(int64_t count, int64_t size, Bf16* matrices, double* scratch,
                   cudaStream_t stream) {
  CheckAlignment(matrices);
  assert(size % kVector == 0 && count <= 65535);
  const dim3 grid(BlocksFor(size, kTileValues), static_cast<unsigned>(count));
  double* const scales = scratch + count * grid.x;
  Launch(MatrixSquaresKernel, grid, kThreads, 0, stream, size, matrices, scratch);
  Launch(ScalesKernel, grid.y, kThreads, 0, stream, static_cast<int>(grid.x), scratch, scales);
  Launch(ScaleKernel, grid, kThreads, 0, stream, size, scales, matrices);
}

}  // namespace causeway::worker::cuda
