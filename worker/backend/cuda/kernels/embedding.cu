#include "worker/backend/cuda/kernels/kernels.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/kernels/vectors.cuh"

namespace causeway::worker::cuda {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void EmbeddingForwardKernel(EmbeddingForwardArguments a,
                                                                   uint32_t vectors,
                                                                   uint32_t vectors_per_row) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const uint32_t token = i / vectors_per_row;
  const int64_t column = int64_t{i - token * vectors_per_row} * kVector;
  const Bf16* const row = a.embedding + a.inputs[token] * a.width + column;
  Bf16* const out = a.out + int64_t{i} * kVector;
  if (a.positions == nullptr) {
    StoreVector(LoadVector(row), out);
    return;
  }
  const uint32_t position = token % static_cast<uint32_t>(a.length);
  float value[kVector], add[kVector];
  LoadUnpacked(row, value);
  LoadUnpacked(a.positions + position * a.width + column, add);
#pragma unroll
  for (int k = 0; k < kVector; ++k) value[k] += add[k];
  StorePacked(value, out);
}

// --- The gradient of the embedding ---
// Tokens are taken in their sorted order, so that equal ones are neighbours: a run. A block has
// kRunTokens of them and sums each run. A run that it has whole is added to the gradient; what it
// has of one that goes on elsewhere is kept: of one that began before in `heads`, of one that
// begins here in `tails`, both [blocks, width]. The second kernel joins them.
constexpr int kRunTokens = 64;

// The token at place i of the sorted order; -1 outside.
__device__ __forceinline__ int32_t SortedToken(const EmbeddingBackwardArguments& a, int64_t i) {
  return i < 0 || i >= a.tokens ? -1 : a.inputs[a.order[i]];
}

__device__ __forceinline__ void AddToRow(const float (&sum)[kVector], float* row) {
  float value[kVector];
  LoadUnpacked(row, value);
#pragma unroll
  for (int i = 0; i < kVector; ++i) value[i] += sum[i];
  StorePacked(value, row);
}

__global__ __launch_bounds__(kThreads) void SumRunsKernel(EmbeddingBackwardArguments a,
                                                          float* heads, float* tails) {
  __shared__ int32_t places[kRunTokens];
  __shared__ int32_t tokens[kRunTokens];
  const int64_t begin = int64_t{blockIdx.y} * kRunTokens;
  const int size = static_cast<int>(begin + kRunTokens < a.tokens ? kRunTokens : a.tokens - begin);
  for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) {
    places[i] = a.order[begin + i];
    tokens[i] = a.inputs[places[i]];
  }
  __syncthreads();
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVector;
  if (column >= a.width) return;
  const bool began_before = SortedToken(a, begin - 1) == tokens[0];
  const bool goes_on = SortedToken(a, begin + size) == tokens[size - 1];
  const int64_t kept = blockIdx.y * a.width + column;

  constexpr int kAtOnce = 8;
  float sum[kVector] = {};
  bool first_run = true;
  for (int start = 0; start < size; start += kAtOnce) {
    uint4 loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (start + k < size) loaded[k] = LoadVector(a.dout + places[start + k] * a.width + column);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = start + k;
      if (i >= size) break;
      float value[kVector];
      Unpack(loaded[k], value);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j] += value[j];
      const bool last = i + 1 == size;
      if (!last && tokens[i + 1] == tokens[i]) continue;
      if (first_run && began_before) {
        StorePacked(sum, heads + kept);
      } else if (last && goes_on) {
        StorePacked(sum, tails + kept);
      } else {
        AddToRow(sum, a.dembedding + tokens[i] * a.width + column);
      }
      first_run = false;
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j] = 0;
    }
  }
}

// The block of the place where a run begins that leaves it adds up the whole run.
__global__ __launch_bounds__(kThreads) void JoinRunsKernel(EmbeddingBackwardArguments a,
                                                           const float* heads, const float* tails) {
  const int64_t begin = int64_t{blockIdx.y} * kRunTokens;
  const int64_t end = begin + kRunTokens;
  if (end >= a.tokens) return;
  const int32_t token = SortedToken(a, end - 1);
  if (SortedToken(a, end) != token) return;
  if (SortedToken(a, begin) == token && SortedToken(a, begin - 1) == token) return;
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVector;
  if (column >= a.width) return;
  float sum[kVector];
  LoadUnpacked(tails + blockIdx.y * a.width + column, sum);
  for (int64_t block = int64_t{blockIdx.y} + 1; SortedToken(a, block * kRunTokens) == token;
       ++block) {
    float value[kVector];
    LoadUnpacked(heads + block * a.width + column, value);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += value[i];
  }
  AddToRow(sum, a.dembedding + token * a.width + column);
}

__global__ __launch_bounds__(kThreads) void PositionsBackwardKernel(PositionsBackwardArguments a,
                                                                    uint32_t vectors,
                                                                    uint32_t vectors_per_row) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const uint32_t position = i / vectors_per_row;
  const int64_t at = int64_t{i} * kVector;
  float sum[kVector] = {};
  if (position < a.length) {
#pragma unroll 4
    for (int64_t sequence = 0; sequence < a.sequences; ++sequence) {
      float value[kVector];
      LoadUnpacked(a.dout + sequence * a.length * a.width + at, value);
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum[k] += value[k];
    }
  }
  if (a.accumulate) {
    AddToRow(sum, a.dpositions + at);
  } else {
    StorePacked(sum, a.dpositions + at);
  }
}

}  // namespace

void EmbeddingForward(const EmbeddingForwardArguments& a, cudaStream_t stream) {
  CheckAlignment(a.embedding, a.positions, a.out);
  const uint32_t vectors = VectorsOf(a.tokens, a.width);
  Launch(EmbeddingForwardKernel, BlocksFor(vectors, kThreads), kThreads, 0, stream, a, vectors,
         VectorsOfRow(a.width));
}

int64_t EmbeddingBackwardScratch(int64_t tokens, int64_t width) {
  return 2 * int64_t{BlocksFor(tokens, kRunTokens)} * width;
}

void EmbeddingBackward(const EmbeddingBackwardArguments& a, cudaStream_t stream) {
  CheckAlignment(a.dout, a.dembedding, a.scratch);
  assert(a.width % kVector == 0);
  const unsigned runs = BlocksFor(a.tokens, kRunTokens);
  assert(runs <= 65535);
  const int64_t vectors = a.width / kVector;
  const unsigned threads =
      static_cast<unsigned>(std::min<int64_t>(kThreads, (vectors + 31) / 32 * 32));
  const dim3 grid(BlocksFor(vectors, threads), runs);
  float* const heads = a.scratch;
  float* const tails = heads + runs * a.width;
  Launch(SumRunsKernel, grid, threads, 0, stream, a, heads, tails);
  Launch(JoinRunsKernel, grid, threads, 0, stream, a, heads, tails);
}

void PositionsBackward(const PositionsBackwardArguments& a, cudaStream_t stream) {
  CheckAlignment(a.dout, a.dpositions);
  assert(a.length <= a.learned_positions);
  const uint32_t vectors = VectorsOf(a.learned_positions, a.width);
  Launch(PositionsBackwardKernel, BlocksFor(vectors, kThreads), kThreads, 0, stream, a, vectors,
         VectorsOfRow(a.width));
}

TokenOrder::TokenOrder(int64_t vocabulary) : next_(static_cast<size_t>(vocabulary)) {}

void TokenOrder::Sort(std::span<const int32_t> inputs, std::span<int32_t> order) {
  assert(inputs.size() == order.size());
  std::fill(next_.begin(), next_.end(), 0);
  for (const int32_t token : inputs) ++next_[static_cast<size_t>(token)];
  int32_t begin = 0;
  for (int32_t& next : next_) {
    const int32_t count = next;
    next = begin;
    begin += count;
  }
  for (size_t place = 0; place < inputs.size(); ++place) {
    int32_t& next = next_[static_cast<size_t>(inputs[place])];
    order[static_cast<size_t>(next++)] = static_cast<int32_t>(place);
  }
}

}  // namespace causeway::worker::cuda
