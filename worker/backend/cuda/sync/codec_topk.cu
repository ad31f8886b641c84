// TOPK2's encoder: the largest 64 of a chunk, their two levels, their places. docs/codecs.md has
// the bytes, common/codec/topk_codec.cc the plain code.
#include <cmath>

#include "common/codec/bf16.h"
#include "worker/backend/cuda/kernels/intrinsics.cuh"
#include "worker/backend/cuda/kernels/launch.cuh"
#include "worker/backend/cuda/sync/codec_device.cuh"
#include "worker/backend/cuda/sync/codec_kernels.h"

namespace causeway::worker::cuda {
namespace {

constexpr int kWords = kChunkValues / 32;  // One bit per value.
constexpr int kWarps = kCodecThreads / kWarpSize;
constexpr int kMost = static_cast<int>(kTopK);
constexpr int kSums = 8;

// Sums over the block in every thread; `scratch` has two rows of kWarps, used in turn, so that one
// barrier is enough.
class Counter {
 public:
  __device__ explicit Counter(int* scratch) : scratch_(scratch) {}
  __device__ int Sum(int value) {
    int* const row = scratch_ + turn_ * kWarps;
    turn_ ^= 1;
    return BlockSum<kCodecThreads>(value, row);
  }

 private:
  int* scratch_;
  int turn_ = 0;
};

// The bits, among those of all threads, of the rank-th largest magnitude: the largest number that
// `rank` of them reach.
__device__ int RankedBits(const int (&bits)[kCodecRounds][4], int rank, Counter& counter) {
  int found = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const int tried = found | 1 << bit;
    int reached = 0;
#pragma unroll
    for (int k = 0; k < kCodecRounds; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) reached += bits[k][j] >= tried ? 1 : 0;
    }
    if (counter.Sum(reached) >= rank) found = tried;
  }
  return found;
}

// Sets bit i of `words` where `is_set(k, j)` for the value i; words are the block's, and whole
// after a barrier. A word has the values of 8 neighbouring threads.
template <typename IsSet>
__device__ void CollectBits(unsigned* words, IsSet is_set) {
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    unsigned four = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) four |= (is_set(k, j) ? 1U : 0U) << j;
    const int lane = static_cast<int>(threadIdx.x) % 8;
    unsigned word = four << (4 * lane);
#pragma unroll
    for (int bits = 4; bits > 0; bits /= 2) word |= __shfl_xor_sync(kFullWarp, word, bits);
    if (lane == 0) words[FirstOfRound(k) / 32] = word;
  }
}

// How many bits are set before each word: by the first warp alone.
__device__ void CountBefore(const unsigned* words, int* before) {
  if (threadIdx.x >= kWarpSize) return;
  constexpr int kEach = kWords / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x);
  int own = 0;
  for (int i = 0; i < kEach; ++i) own += __popc(words[lane * kEach + i]);
  int sum = own;
#pragma unroll
  for (int step = 1; step < kWarpSize; step *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, step);
    if (lane >= step) sum += other;
  }
  int count = sum - own;
  for (int i = 0; i < kEach; ++i) {
    before[lane * kEach + i] = count;
    count += __popc(words[lane * kEach + i]);
  }
}

// The bits of `words` below the value's own.
__device__ int CountBelow(const unsigned* words, const int* before, int i) {
  return before[i / 32] + __popc(words[i / 32] & ((1U << (i % 32)) - 1U));
}

struct Means {
  double small = 0;
  double large = 0;
};

// The means of the magnitudes up to a threshold and beyond it, 0 where there are none; in the eight
// lanes of a group, each of which adds up every eighth. All lanes of the warp call it.
__device__ Means MeansAround(const double* magnitudes, int count, double threshold) {
  const int lane = static_cast<int>(threadIdx.x) % kSums;
  double small = 0;
  double large = 0;
  double large_count = 0;
  for (int i = lane; i < kMost; i += kSums) {
    const double x = magnitudes[i];
    const bool is_large = x > threshold;
    small += is_large ? 0.0 : x;
    large += is_large ? x : 0.0;
    large_count += is_large ? 1.0 : 0.0;
  }
  // ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)).
#pragma unroll
  for (int bits = kSums / 2; bits > 0; bits /= 2) {
    small += __shfl_xor_sync(kFullWarp, small, bits);
    large += __shfl_xor_sync(kFullWarp, large, bits);
    large_count += __shfl_xor_sync(kFullWarp, large_count, bits);
  }
  const double small_count = static_cast<double>(count) - large_count;
  Means means;
  means.small = small_count == 0 ? 0.0 : small / small_count;
  means.large = large_count == 0 ? 0.0 : large / large_count;
  return means;
}

struct Chosen {
  int count;
  unsigned short index[kMost];
  float difference[kMost];
  double magnitude[kMost];  // Zeros beyond.
};

// By the first warp: the levels of what is chosen, and all bytes of the chunk.
__device__ void Pack(const Chosen& chosen, int values, unsigned (&places)[kMost / 16],
                     float (&sent)[kMost], uint8_t* out) {
  const int lane = static_cast<int>(threadIdx.x);
  constexpr double kAboveAll = 1e300;
  double threshold = MeansAround(chosen.magnitude, chosen.count, kAboveAll).small;
  Means means = MeansAround(chosen.magnitude, chosen.count, threshold);
  for (int step = 0; step < kTopKSteps && means.large != 0; ++step) {
    threshold = (means.small + means.large) / 2;
    means = MeansAround(chosen.magnitude, chosen.count, threshold);
  }
  const TopKChunkLayout layout(static_cast<size_t>(values));
  const bool is_empty = chosen.count == 0;
  const uint16_t small = is_empty ? 0 : Bf16Nearest(static_cast<float>(means.small));
  const uint16_t large = is_empty ? 0 : Bf16Nearest(static_cast<float>(means.large));
  if (lane < 2) {
    const uint16_t scale = lane == 0 ? small : large;
    out[2 * lane] = static_cast<uint8_t>(scale & 0xffU);
    out[2 * lane + 1] = static_cast<uint8_t>(scale >> 8);
  }
  uint8_t* const entries = out + layout.entries_offset;
  for (int i = lane; i < static_cast<int>(layout.blocks); i += kWarpSize) {
    unsigned entry = 0;
    if (i < chosen.count) {
      const unsigned is_large = chosen.magnitude[i] > threshold ? 1 : 0;
      const unsigned sign = __float_as_uint(chosen.difference[i]) & 0x80000000U;
      const unsigned code = is_large * kTopKLarge | (sign >> 31) * kTopKNegative;
      entry = (chosen.index[i] & kTopKPlaceMask) | code << kTopKPlaceBits;
      const float level = Bf16ToFloat(is_large != 0 ? large : small);
      sent[i] = __uint_as_float(__float_as_uint(level) | sign);
      const int bit = chosen.index[i] / kBlockValues + i;
      atomicOr(&places[bit / 32], 1U << (bit % 32));
    }
    entries[i] = static_cast<uint8_t>(entry);
  }
  __syncwarp();
  const int place_bytes = static_cast<int>(layout.entries_offset - layout.places_offset);
  for (int i = lane; i < place_bytes; i += kWarpSize) {
    out[layout.places_offset + i] = static_cast<uint8_t>(places[i / 4] >> (8 * (i % 4)));
  }
}

template <bool kFeedback>
__global__ void __launch_bounds__(kCodecThreads) EncodeTopKChunk(const EncodeJob job) {
  __shared__ int refused;
  __shared__ int counts[2 * kWarps];
  __shared__ unsigned greater[kWords];
  __shared__ unsigned equal[kWords];
  __shared__ int equal_before[kWords];
  __shared__ int taken_before[kWords];
  __shared__ Chosen chosen;
  __shared__ float sent[kMost];
  __shared__ unsigned places[kMost / 16];
  const ChunkInput input(job);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) refused = 0;
  if (thread < kMost) chosen.magnitude[thread] = 0;
  if (thread < kMost / 16) places[thread] = 0;
  __syncthreads();
  float difference[kCodecRounds][4];
  int bits[kCodecRounds][4];  // Magnitudes; 0 below the smallest that is ever sent.
  int sendable = 0;
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
    const int i = FirstOfRound(k);
    input.LoadDifferences<kFeedback>(i, difference[k]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int magnitude = __float_as_int(difference[k][j]) & 0x7fffffff;
      if (magnitude > kTopKLargestBits) Refuse(job.refusal, i + j, &refused);
      bits[k][j] = magnitude < kTopKSmallestBits ? 0 : magnitude;
      sendable += bits[k][j] != 0 ? 1 : 0;
    }
  }
  __syncthreads();
  if (refused != 0) return;

  const int most = BlocksOf(input.count);
  Counter counter(counts);
  sendable = counter.Sum(sendable);
  // All that can be sent, or those above a magnitude and the first ones that equal it.
  const int least = sendable <= most ? 1 : RankedBits(bits, most, counter);
  CollectBits(greater, [&](int k, int j) { return bits[k][j] > least; });
  CollectBits(equal, [&](int k, int j) { return bits[k][j] == least; });
  int greater_count = 0;
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) greater_count += bits[k][j] > least ? 1 : 0;
  }
  greater_count = counter.Sum(greater_count);  // And the words are whole.
  CountBefore(equal, equal_before);
  __syncthreads();
  // The equal ones that are too many are taken out of the words of both.
  const int room = most - greater_count;
  if (thread < kWords) {
    unsigned word = equal[thread];
    while (equal_before[thread] + __popc(word) > room && word != 0) {
      word &= ~(1U << (31 - __clz(static_cast<int>(word))));
    }
    greater[thread] |= word;
  }
  __syncthreads();
  CountBefore(greater, taken_before);
  __syncthreads();
  if (thread == kWords - 1) {
    chosen.count = taken_before[kWords - 1] + __popc(greater[kWords - 1]);
  }
#pragma unroll
  for (int k = 0; k < kCodecRounds; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = FirstOfRound(k) + j;
      if ((greater[i / 32] >> (i % 32) & 1U) == 0) continue;
      const int place = CountBelow(greater, taken_before, i);
      chosen.index[place] = static_cast<unsigned short>(i);
      chosen.difference[place] = difference[k][j];
      chosen.magnitude[place] = static_cast<double>(fabsf(difference[k][j]));
    }
  }
  __syncthreads();
  if (thread < kWarpSize) {
    Pack(chosen, input.count, places, sent,
         job.out + int64_t{blockIdx.x} * static_cast<int64_t>(TopKChunkLayout(kCodecChunk).bytes));
  }
  if constexpr (kFeedback) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kCodecRounds; ++k) {
      const int i = FirstOfRound(k);
      float left[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        left[j] = difference[k][j];
        if ((greater[(i + j) / 32] >> ((i + j) % 32) & 1U) != 0) {
          left[j] -= sent[CountBelow(greater, taken_before, i + j)];
        }
      }
      Store4(left, input.residual, i, input.count);
    }
  }
}

}  // namespace

void LaunchEncodeTopK(const EncodeJob& job, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ChunksOf(job.values)));
  if (job.residual != nullptr) {
    Launch(EncodeTopKChunk<true>, grid, dim3(kCodecThreads), 0, stream, job);
  } else {
    Launch(EncodeTopKChunk<false>, grid, dim3(kCodecThreads), 0, stream, job);
  }
}

}  // namespace causeway::worker::cuda
