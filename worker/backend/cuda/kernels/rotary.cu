#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

template <int kRun>
__device__ __forceinline__ void LoadRun(const Bf16* from, float (&values)[kRun]) {
  if constexpr (kRun == kVector) {
    LoadUnpacked(from, values);
  } else {
    values[0] = __bfloat162float(*from);
  }
}
template <int kRun>
__device__ __forceinline__ void LoadRun(const float* from, float (&values)[kRun]) {
  if constexpr (kRun == kVector) {
    LoadUnpacked(from, values);
  } else {
    values[0] = *from;
  }
}
template <int kRun>
__device__ __forceinline__ void StoreRun(const float (&values)[kRun], Bf16* to) {
  if constexpr (kRun == kVector) {
    StorePacked(values, to);
  } else {
    *to = __float2bfloat16_rn(values[0]);
  }
}

// A few neighbouring lanes, a power of two, share a head. Each has kChunks runs of kRun values in
// the first half of the head and their partners in the second half, or zeros. kRun is kVector where
// head_dim is a multiple of 16, and 1 otherwise.
template <int kRun, int kChunks>
struct HeadPart {
  float first[kChunks][kRun] = {};
  float second[kChunks][kRun] = {};

  // Once.
  __device__ void Load(const Bf16* head, int half, int lane, int lanes, bool present) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int at = (c * lanes + lane) * kRun;
      if (!present || at >= half) continue;
      LoadRun(head + at, first[c]);
      LoadRun(head + half + at, second[c]);
    }
  }
  __device__ void Store(Bf16* head, int half, int lane, int lanes) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int at = (c * lanes + lane) * kRun;
      if (at >= half) continue;
      StoreRun(first[c], head + at);
      StoreRun(second[c], head + half + at);
    }
  }
  // Turns by the angles of a position, backwards with sign -1.
  __device__ void Turn(const float* cosine, const float* sine, float sign, int half, int lane,
                       int lanes) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int at = (c * lanes + lane) * kRun;
      if (at >= half) continue;
      float cosines[kRun], sines[kRun];
      LoadRun(cosine + at, cosines);
      LoadRun(sine + at, sines);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float s = sines[i] * sign;
        const float x = first[c][i];
        const float y = second[c][i];
        first[c][i] = x * cosines[i] - y * s;
        second[c][i] = y * cosines[i] + x * s;
      }
    }
  }
};

// Over the `lanes` neighbours that share a head; all lanes of the warp call it.
__device__ __forceinline__ float HeadSum(float value, int lanes) {
  for (int bits = lanes / 2; bits > 0; bits /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, bits);
  }
  return value;
}

template <int kRun, int kChunks>
__device__ __forceinline__ float InverseRms(const HeadPart<kRun, kChunks>& part, int head_dim,
                                            float epsilon, int lanes) {
  float squares = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      squares += part.first[c][i] * part.first[c][i] + part.second[c][i] * part.second[c][i];
    }
  }
  return 1.0F / sqrtf(HeadSum(squares, lanes) / static_cast<float>(head_dim) + epsilon);
}

// Norm, unless there are no weights, and rotation of one head per `lanes` threads.
template <int kRun, int kChunks>
__global__ __launch_bounds__(kThreads) void RotateKernel(RotaryShape shape, const Bf16* in,
                                                         int64_t in_stride, Bf16* out,
                                                         int64_t out_stride, float sign,
                                                         uint32_t heads, int lanes) {
  const auto rotated = static_cast<uint32_t>(shape.query_heads + shape.kv_heads);
  const int half = static_cast<int>(shape.head_dim) / 2;
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t item = thread / static_cast<uint32_t>(lanes);
  const int lane = static_cast<int>(thread % static_cast<uint32_t>(lanes));
  const bool present = item < heads;
  const uint32_t token = item / rotated;
  const uint32_t head = item - token * rotated;
  HeadPart<kRun, kChunks> part;
  part.Load(in + token * in_stride + head * shape.head_dim, half, lane, lanes, present);
  if (shape.query_weight != nullptr) {
    const float factor = InverseRms(part, 2 * half, shape.epsilon, lanes);
    HeadPart<kRun, kChunks> weight;
    weight.Load(head < shape.query_heads ? shape.query_weight : shape.key_weight, half, lane, lanes,
                true);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        part.first[c][i] = part.first[c][i] * factor * weight.first[c][i];
        part.second[c][i] = part.second[c][i] * factor * weight.second[c][i];
      }
    }
  }
  if (!present) return;
  if (shape.cosine != nullptr) {
    const int64_t angles = int64_t{token % static_cast<uint32_t>(shape.length)} * half;
    part.Turn(shape.cosine + angles, shape.sine + angles, sign, half, lane, lanes);
  }
  part.Store(out + token * out_stride + head * shape.head_dim, half, lane, lanes);
}

// The gradient through rotation and norm of heads first_head .. first_head + count of all tokens;
// this block's share of the weight's gradient goes to partial [head_dim].
template <int kRun, int kChunks>
__device__ __forceinline__ void NormedHeadsBackward(const RotaryBackwardArguments& a,
                                                    uint32_t first_head, uint32_t count,
                                                    const Bf16* weight_values, int lanes,
                                                    float* warp_sums, float* partial) {
  const RotaryShape& shape = a.shape;
  const int half = static_cast<int>(shape.head_dim) / 2;
  const float inverse_dim = 1.0F / static_cast<float>(2 * half);
  const auto groups = static_cast<uint32_t>(kThreads / lanes);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const auto heads = static_cast<uint32_t>(shape.tokens) * count;
  HeadPart<kRun, kChunks> weight;
  weight.Load(weight_values, half, lane, lanes, true);
  HeadPart<kRun, kChunks> dweight;

  for (uint32_t first = blockIdx.x * groups; first < heads; first += gridDim.x * groups) {
    const uint32_t item = first + threadIdx.x / static_cast<uint32_t>(lanes);
    const bool present = item < heads;
    const uint32_t token = item / count;
    const int64_t head = int64_t{first_head + item - token * count} * shape.head_dim;
    Bf16* const gradient_at = a.dheads + token * a.dheads_stride + head;
    HeadPart<kRun, kChunks> raw, gradient;
    raw.Load(a.raw + token * a.raw_stride + head, half, lane, lanes, present);
    gradient.Load(gradient_at, half, lane, lanes, present);
    if (present && shape.cosine != nullptr) {
      const int64_t angles = int64_t{token % static_cast<uint32_t>(shape.length)} * half;
      gradient.Turn(shape.cosine + angles, shape.sine + angles, -1.0F, half, lane, lanes);
    }
    const float factor = InverseRms(raw, 2 * half, shape.epsilon, lanes);
    float dot = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        dot += gradient.first[c][i] * weight.first[c][i] * raw.first[c][i];
        dot += gradient.second[c][i] * weight.second[c][i] * raw.second[c][i];
      }
    }
    const float slope = HeadSum(dot, lanes) * factor * factor * inverse_dim;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        dweight.first[c][i] += gradient.first[c][i] * raw.first[c][i] * factor;
        dweight.second[c][i] += gradient.second[c][i] * raw.second[c][i] * factor;
        gradient.first[c][i] =
            factor * (gradient.first[c][i] * weight.first[c][i] - raw.first[c][i] * slope);
        gradient.second[c][i] =
            factor * (gradient.second[c][i] * weight.second[c][i] - raw.second[c][i] * slope);
      }
    }
    if (present) gradient.Store(gradient_at, half, lane, lanes);
  }

  // Over the heads of a warp, then over the warps.
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const bool leads = static_cast<int>(threadIdx.x) % kWarpSize < lanes;
  float* const sums = warp_sums + warp * 2 * half;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int at = (c * lanes + lane) * kRun;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      float low = dweight.first[c][i];
      float high = dweight.second[c][i];
      for (int bits = lanes; bits < kWarpSize; bits *= 2) {
        low += __shfl_xor_sync(kFullWarp, low, bits);
        high += __shfl_xor_sync(kFullWarp, high, bits);
      }
      if (leads && at < half) {
        sums[at + i] = low;
        sums[half + at + i] = high;
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warp_sums[w * 2 * half + i];
    partial[i] = sum;
  }
}

// partials: [gridDim.x, 2, head_dim], queries and keys.
template <int kRun, int kChunks>
__global__ __launch_bounds__(kThreads) void NormedRotateBackwardKernel(RotaryBackwardArguments a,
                                                                       int lanes) {
  CAUSEWAY_DYNAMIC_SHARED(float, warp_sums);
  float* const partial = a.scratch + blockIdx.x * 2 * a.shape.head_dim;
  const auto queries = static_cast<uint32_t>(a.shape.query_heads);
  const auto keys = static_cast<uint32_t>(a.shape.kv_heads);
  NormedHeadsBackward<kRun, kChunks>(a, 0, queries, a.shape.query_weight, lanes, warp_sums,
                                     partial);
  __syncthreads();
  NormedHeadsBackward<kRun, kChunks>(a, queries, keys, a.shape.key_weight, lanes, warp_sums,
                                     partial + a.shape.head_dim);
}

bool Aligned(const RotaryShape& shape) { return shape.head_dim % (2 * kVector) == 0; }

// Runs of the half head that a lane keeps.
int Chunks(const RotaryShape& shape) {
  return Aligned(shape) || shape.head_dim <= 2 * kWarpSize ? 1 : 4;
}

// Lanes that share a head.
int Lanes(const RotaryShape& shape) {
  const int64_t runs = shape.head_dim / 2 / (Aligned(shape) ? kVector : 1);
  int lanes = 1;
  while (lanes < kWarpSize && lanes < runs) lanes *= 2;
  return lanes;
}

int64_t BackwardBlocks(const RotaryShape& shape) {
  return std::min<int64_t>(BlocksFor(shape.tokens * shape.query_heads, kThreads / Lanes(shape)),
                           kPartialBlocks);
}

void CheckShape(const RotaryShape& shape) {
  assert(shape.head_dim % 2 == 0 && shape.head_dim >= 2);
  assert(shape.head_dim <= (Aligned(shape) ? kMaxRotaryHeadDim : kMaxUnalignedRotaryHeadDim));
  assert(shape.tokens * (shape.query_heads + shape.kv_heads) < int64_t{1} << 26);
  assert((shape.query_weight == nullptr) == (shape.key_weight == nullptr));
  if (Aligned(shape)) {
    CheckAlignment(shape.query_weight, shape.key_weight, shape.cosine, shape.sine);
  }
}

void Rotate(const RotaryShape& shape, const Bf16* in, int64_t in_stride, Bf16* out,
            int64_t out_stride, float sign, cudaStream_t stream) {
  const auto heads = static_cast<uint32_t>(shape.tokens * (shape.query_heads + shape.kv_heads));
  const int lanes = Lanes(shape);
  const unsigned blocks = BlocksFor(heads, kThreads / lanes);
  const auto kernel = Aligned(shape)       ? RotateKernel<kVector, 1>
                      : Chunks(shape) == 1 ? RotateKernel<1, 1>
                                           : RotateKernel<1, 4>;
  Launch(kernel, blocks, kThreads, 0, stream, shape, in, in_stride, out, out_stride, sign, heads,
         lanes);
}

}  // namespace

void RotaryForward(const RotaryForwardArguments& a, cudaStream_t stream) {
  CheckShape(a.shape);
  if (Aligned(a.shape)) CheckAlignment(a.in, a.out);
  Rotate(a.shape, a.in, a.in_stride, a.out, a.out_stride, 1.0F, stream);
}

int64_t RotaryBackwardScratch(const RotaryShape& shape) {
  return shape.query_weight == nullptr ? 0 : BackwardBlocks(shape) * 2 * shape.head_dim;
}

void RotaryBackward(const RotaryBackwardArguments& a, cudaStream_t stream) {
  CheckShape(a.shape);
  if (Aligned(a.shape)) CheckAlignment(a.raw, a.dheads);
  if (a.shape.query_weight == nullptr) {
    return Rotate(a.shape, a.dheads, a.dheads_stride, a.dheads, a.dheads_stride, -1.0F, stream);
  }
  const int64_t dim = a.shape.head_dim;
  const int64_t blocks = BackwardBlocks(a.shape);
  const auto kernel = Aligned(a.shape)       ? NormedRotateBackwardKernel<kVector, 1>
                      : Chunks(a.shape) == 1 ? NormedRotateBackwardKernel<1, 1>
                                             : NormedRotateBackwardKernel<1, 4>;
  Launch(kernel, static_cast<unsigned>(blocks), kThreads,
         static_cast<size_t>(kWarps * dim) * sizeof(float), stream, a, Lanes(a.shape));
  SumPartials(blocks, 2 * dim, dim, a.scratch, a.accumulate_weight, a.dquery_weight, stream);
  SumPartials(blocks, 2 * dim, dim, a.scratch + dim, a.accumulate_weight, a.dkey_weight, stream);
}

}  // namespace causeway::worker::cuda
