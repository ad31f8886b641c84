// The optimizer's kernels: the gradient's norm, AdamW, and Muon around its products.
#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;
constexpr int kAtOnce = 4;                                           // Vectors that a thread loads.
constexpr int64_t kSquaresValues = int64_t{kThreads} * 4 * kAtOnce;  // That a block loads.
constexpr int64_t kMaxBlocks = 2112;                                 // 16 on each of 132.

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
  for (int64_t tile = blockIdx.x * kSquaresValues; tile < size;
       tile += gridDim.x * kSquaresValues) {
    if (tile + kSquaresValues <= size) {
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
  return static_cast<unsigned>(std::min<int64_t>(BlocksFor(size, kSquaresValues), kMaxBlocks));
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

namespace {

// AdamWStep::Apply, operation by operation, none of them fused: the CPU's bits.
__device__ __forceinline__ void Apply(const AdamWStep<float>& step, float decay, float gradient,
                                      float& weight, float& m, float& v) {
  weight = __fsub_rn(weight, __fmul_rn(decay, weight));
  m = __fadd_rn(__fmul_rn(step.beta1, m), __fmul_rn(step.one_minus_beta1, gradient));
  v = __fadd_rn(__fmul_rn(step.beta2, v),
                __fmul_rn(__fmul_rn(step.one_minus_beta2, gradient), gradient));
  const float root = __fmul_rn(__fsqrt_rn(v), step.inverse_sqrt_correction2);
  weight =
      __fsub_rn(weight, __fdiv_rn(__fmul_rn(step.step_size, m), __fadd_rn(root, step.epsilon)));
}

__global__ __launch_bounds__(kThreads) void AdamWKernel(AdamWArguments a) {
  const GradientNorm norm = *a.norm;
  if (norm.finite == 0) return;
  const AdamWStep<float> step = *a.step;
  const OptimizerSlice slice = a.slices[blockIdx.x];
  const float decay = __fmul_rn(step.learning_rate, slice.weight_decay);
  const float* const gradients = a.gradient + slice.gradient;
  float* const masters = a.master + slice.state;
  float* const ms = a.m + slice.state;
  float* const vs = a.v + slice.second;
  Bf16* const weights = a.weight + slice.weight;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) * 4; i + 4 <= slice.size; i += kThreads * 4) {
    const float4 g = LoadFloats(gradients + i);
    float4 w = LoadFloats(masters + i);
    float4 m = LoadFloats(ms + i);
    float4 v = LoadFloats(vs + i);
    Apply(step, decay, __fmul_rn(g.x, norm.factor), w.x, m.x, v.x);
    Apply(step, decay, __fmul_rn(g.y, norm.factor), w.y, m.y, v.y);
    Apply(step, decay, __fmul_rn(g.z, norm.factor), w.z, m.z, v.z);
    Apply(step, decay, __fmul_rn(g.w, norm.factor), w.w, m.w, v.w);
    StoreFloats(w, masters + i);
    StoreFloats(m, ms + i);
    StoreFloats(v, vs + i);
    *reinterpret_cast<uint2*>(weights + i) = make_uint2(PackBf16(w.x, w.y), PackBf16(w.z, w.w));
  }
  const int rest = slice.size / 4 * 4 + static_cast<int>(threadIdx.x);
  if (rest >= slice.size) return;
  float w = masters[rest];
  float m = ms[rest];
  float v = vs[rest];
  Apply(step, decay, __fmul_rn(gradients[rest], norm.factor), w, m, v);
  masters[rest] = w;
  ms[rest] = m;
  vs[rest] = v;
  weights[rest] = __float2bfloat16_rn(w);
}

}  // namespace

void AppendSlices(const OptimizerSlice& first, int64_t size, std::vector<OptimizerSlice>* slices) {
  for (int64_t at = 0; at < size; at += kSliceValues) {
    OptimizerSlice slice = first;
    for (int64_t* const place :
         {&slice.state, &slice.gradient, &slice.weight, &slice.second, &slice.update}) {
      assert(*place % kVector == 0);
      *place += at;
    }
    slice.size = static_cast<int32_t>(std::min(kSliceValues, size - at));
    slices->push_back(slice);
  }
}

void AdamWUpdate(const AdamWArguments& a, cudaStream_t stream) {
  CheckAlignment(a.gradient, a.master, a.m, a.v, a.weight);
  Launch(AdamWKernel, BlocksFor(a.count, 1), kThreads, 0, stream, a);
}

namespace {

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
  const OptimizerSlice slice = a.slices[blockIdx.x];
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
  const OptimizerSlice slice = a.slices[blockIdx.x];
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
