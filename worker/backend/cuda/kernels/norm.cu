#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>

#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

template <int kChunks, bool kLayerNorm>
__global__ __launch_bounds__(kRowThreads) void NormForwardKernel(NormForwardArguments a,
                                                                 int warps_per_row) {
  __shared__ float slots[2][kRowWarps];
  const RowLane lane(warps_per_row);
  const int width = static_cast<int>(a.width);
  const int64_t row = int64_t{blockIdx.x} * (kRowWarps / warps_per_row) + lane.group;
  const bool present = row < a.rows;
  const int64_t at = row * a.width;

  uint4 x[kChunks] = {};
  uint4 addend[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int column = lane.Column(c);
    if (!present || column >= width) continue;
    x[c] = LoadVector(a.x + at + column);
    if (a.addend != nullptr) addend[c] = LoadVector(a.addend + at + column);
  }
  if (a.addend != nullptr) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = lane.Column(c);
      if (!present || column >= width) continue;
      float value[kVector], add[kVector];
      Unpack(x[c], value);
      Unpack(addend[c], add);
#pragma unroll
      for (int i = 0; i < kVector; ++i) value[i] += add[i];
      x[c] = Pack(value);
      StoreVector(x[c], a.x_out + at + column);
    }
  }

  float mean = 0;
  if constexpr (kLayerNorm) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float value[kVector];
      Unpack(x[c], value);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum += value[i];
    }
    mean = RowSum(sum, lane, slots[0]) / static_cast<float>(width);
  }
  float squares = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (lane.Column(c) >= width) continue;
    float value[kVector];
    Unpack(x[c], value);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += (value[i] - mean) * (value[i] - mean);
  }
  squares = RowSum(squares, lane, slots[1]);
  if (!present) return;
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(width) + a.epsilon);
  if (lane.first == 0) {
    a.inverse_deviation[row] = factor;
    if constexpr (kLayerNorm) a.mean[row] = mean;
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int column = lane.Column(c);
    if (column >= width) continue;
    float value[kVector], weight[kVector];
    Unpack(x[c], value);
    LoadUnpacked(a.weight + column, weight);
    if constexpr (kLayerNorm) {
      float bias[kVector];
      LoadUnpacked(a.bias + column, bias);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        // Written out, so that the backward pass computes the same bits again.
        value[i] = fmaf((value[i] - mean) * factor, weight[i], bias[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) value[i] = value[i] * factor * weight[i];
    }
    StorePacked(value, a.out + at + column);
  }
}

// Sums `mine` of the block's rows in order of their groups and writes them to `partial`. All
// threads call it; `sums` is shared memory of a row, free when the last of them arrives.
template <int kChunks>
__device__ __forceinline__ void WriteBlockSum(const float (&mine)[kChunks][kVector],
                                              const RowLane& lane, int groups, int width,
                                              float* sums, float* partial) {
  for (int group = 0; group < groups; ++group) {
    if (group > 0) __syncthreads();
    if (lane.group != group) continue;
    float* const to = group == groups - 1 ? partial : sums;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = lane.Column(c);
      if (column >= width) continue;
      float total[kVector] = {};
      if (group > 0) LoadUnpacked(sums + column, total);
#pragma unroll
      for (int i = 0; i < kVector; ++i) total[i] += mine[c][i];
      StorePacked(total, to + column);
    }
  }
}

// partials: [gridDim.x, width], or [gridDim.x, 2, width] for LayerNorm.
template <int kChunks, bool kLayerNorm>
__global__ __launch_bounds__(kRowThreads,
                             kChunks > 4 ? 1 : 2) void NormBackwardKernel(NormBackwardArguments a,
                                                                          int warps_per_row,
                                                                          float* partials) {
  CAUSEWAY_DYNAMIC_SHARED(float, sums);
  __shared__ float slots[2][2][kRowWarps];
  const RowLane lane(warps_per_row);
  const int groups = kRowWarps / warps_per_row;
  const int width = static_cast<int>(a.width);
  const float inverse_width = 1.0F / static_cast<float>(width);
  float dweight[kChunks][kVector] = {};
  float dbias[kLayerNorm ? kChunks : 1][kVector] = {};

  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * groups; first < a.rows;
       first += int64_t{gridDim.x} * groups) {
    const int64_t row = first + lane.group;
    const bool present = row < a.rows;
    const int64_t at = row * a.width;
    uint4 x[kChunks] = {};
    uint4 dout[kChunks] = {};
    uint4 dx[kChunks] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = lane.Column(c);
      if (!present || column >= width) continue;
      x[c] = LoadVector(a.x + at + column);
      dout[c] = LoadVector(a.dout + at + column);
      // Already here, so that no latency follows the sums.
      if (a.accumulate_dx) dx[c] = LoadVector(a.dx + at + column);
    }
    const float factor = present ? a.inverse_deviation[row] : 0.0F;
    const float mean = kLayerNorm && present ? a.mean[row] : 0.0F;

    float dot = 0;
    float gradient_sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = lane.Column(c);
      if (column >= width) continue;
      float value[kVector], upstream[kVector], weight[kVector];
      Unpack(x[c], value);
      Unpack(dout[c], upstream);
      LoadUnpacked(a.weight + column, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float g = upstream[i] * weight[i];
        dot += g * (value[i] - mean);
        if constexpr (kLayerNorm) gradient_sum += g;
      }
    }
    dot = RowSum(dot, lane, slots[turn][0]);
    if constexpr (kLayerNorm) gradient_sum = RowSum(gradient_sum, lane, slots[turn][1]);
    turn ^= 1;
    if (!present) continue;
    const float gradient_mean = gradient_sum * inverse_width;
    // xhat's factor: mean(g * xhat).
    const float slope = dot * factor * inverse_width;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = lane.Column(c);
      if (column >= width) continue;
      float value[kVector], upstream[kVector], weight[kVector], gradient[kVector];
      Unpack(x[c], value);
      Unpack(dout[c], upstream);
      Unpack(dx[c], gradient);
      LoadUnpacked(a.weight + column, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float xhat = (value[i] - mean) * factor;
        gradient[i] += factor * (upstream[i] * weight[i] - gradient_mean - xhat * slope);
        dweight[c][i] += upstream[i] * xhat;
        if constexpr (kLayerNorm) dbias[c][i] += upstream[i];
        value[i] = kLayerNorm ? xhat : xhat * weight[i];
      }
      StorePacked(gradient, a.dx + at + column);
      if (a.out == nullptr) continue;
      if constexpr (kLayerNorm) {
        float bias[kVector];
        LoadUnpacked(a.bias + column, bias);
#pragma unroll
        for (int i = 0; i < kVector; ++i) value[i] = fmaf(value[i], weight[i], bias[i]);
      }
      StorePacked(value, a.out + at + column);
    }
  }

  float* const partial = partials + int64_t{blockIdx.x} * (kLayerNorm ? 2 : 1) * width;
  WriteBlockSum(dweight, lane, groups, width, sums, partial);
  if constexpr (kLayerNorm) {
    WriteBlockSum(dbias, lane, groups, width, sums + width, partial + width);
  }
}

// LayerNorm keeps twice the sums in registers.
RowGroups BackwardGroups(int64_t width, bool layer_norm) {
  return ChooseRowGroups(width, layer_norm ? 2 : 4);
}

int64_t BackwardBlocks(int64_t rows, const RowGroups& groups) {
  return std::min<int64_t>(BlocksFor(rows, groups.rows_per_block()), kPartialBlocks);
}

// Calls launch.operator()<chunks>().
template <typename LaunchFunction>
void WithChunks(int chunks, const LaunchFunction& launch) {
  switch (chunks) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 3:
      return launch.template operator()<3>();
    case 4:
      return launch.template operator()<4>();
    default:
      return launch.template operator()<8>();
  }
}

template <bool kLayerNorm>
void Forward(const NormForwardArguments& a, cudaStream_t stream) {
  const RowGroups groups = ChooseRowGroups(a.width, /*chunk_limit=*/4);
  WithChunks(groups.chunks, [&]<int kChunks>() {
    Launch(NormForwardKernel<kChunks, kLayerNorm>, BlocksFor(a.rows, groups.rows_per_block()),
           kRowThreads, 0, stream, a, groups.warps);
  });
}

template <bool kLayerNorm>
void Backward(const NormBackwardArguments& a, cudaStream_t stream) {
  constexpr int kSums = kLayerNorm ? 2 : 1;
  const RowGroups groups = BackwardGroups(a.width, kLayerNorm);
  const int64_t blocks = BackwardBlocks(a.rows, groups);
  const int64_t shared_values = groups.rows_per_block() > 1 ? a.width * kSums : 0;
  WithChunks(groups.chunks, [&]<int kChunks>() {
    Launch(NormBackwardKernel<kChunks, kLayerNorm>, static_cast<unsigned>(blocks), kRowThreads,
           static_cast<size_t>(shared_values) * sizeof(float), stream, a, groups.warps, a.scratch);
  });
  SumPartials(blocks, kSums * a.width, a.width, a.scratch, a.accumulate_weight, a.dweight, stream);
  if constexpr (kLayerNorm) {
    SumPartials(blocks, kSums * a.width, a.width, a.scratch + a.width, a.accumulate_weight, a.dbias,
                stream);
  }
}

}  // namespace

void NormForward(const NormForwardArguments& a, cudaStream_t stream) {
  CheckAlignment(a.x, a.addend, a.weight, a.bias, a.x_out, a.out);
  (a.bias != nullptr ? Forward<true> : Forward<false>)(a, stream);
}

int64_t NormBackwardScratch(int64_t rows, int64_t width, bool layer_norm) {
  return BackwardBlocks(rows, BackwardGroups(width, layer_norm)) * width * (layer_norm ? 2 : 1);
}

void NormBackward(const NormBackwardArguments& a, cudaStream_t stream) {
  CheckAlignment(a.dout, a.x, a.weight, a.bias, a.dx, a.out, a.dweight, a.dbias, a.scratch);
  (a.bias != nullptr ? Backward<true> : Backward<false>)(a, stream);
}

}  // namespace causeway::worker::cuda
