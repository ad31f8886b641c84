#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;

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
  const AdamWSlice slice = a.slices[blockIdx.x];
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

void AppendAdamWSlices(const AdamWSlice& first, int64_t size, std::vector<AdamWSlice>* slices) {
  assert(first.state % kVector == 0 && first.second % kVector == 0 &&
         first.gradient % kVector == 0 && first.weight % kVector == 0);
  for (int64_t at = 0; at < size; at += kAdamWSliceValues) {
    AdamWSlice slice = first;
    slice.state += at;
    slice.second += at;
    slice.gradient += at;
    slice.weight += at;
    slice.size = static_cast<int32_t>(std::min(kAdamWSliceValues, size - at));
    slices->push_back(slice);
  }
}

void AdamWUpdate(const AdamWArguments& a, cudaStream_t stream) {
  CheckAlignment(a.gradient, a.master, a.m, a.v, a.weight);
  Launch(AdamWKernel, BlocksFor(a.count, 1), kThreads, 0, stream, a);
}

}  // namespace causeway::worker::cuda
