// Shared by the codec kernels. A block of kCodecThreads threads has one chunk: in round k, thread t
// has the four values from 4 (kCodecThreads k + t) on, so that a codec block lies in 16 lanes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "common/codec/block_formats.h"
#include "common/codec/codec_layout.h"
#include "worker/backend/cuda/kernels/codec_kernels.h"

namespace causeway::worker::cuda {

inline constexpr int kCodecThreads = 256;
inline constexpr int kChunkValues = static_cast<int>(kCodecChunk);
inline constexpr int kBlockValues = static_cast<int>(kCodecBlock);
inline constexpr int kCodecRounds = kChunkValues / (4 * kCodecThreads);
inline constexpr int kBlockLanes = kBlockValues / 4;

inline int64_t ChunksOf(int64_t values) { return (values + kChunkValues - 1) / kChunkValues; }

// The thread's first value of round k, in the chunk.
__device__ inline int FirstOfRound(int k) {
  return 4 * (k * kCodecThreads + static_cast<int>(threadIdx.x));
}

// Values of the block's chunk.
__device__ inline int ChunkCount(int64_t values) {
  const int64_t rest = values - int64_t{blockIdx.x} * kChunkValues;
  return rest < kChunkValues ? static_cast<int>(rest) : kChunkValues;
}

// Where a shard's value `first` is in the arena.
__device__ inline int64_t InArena(const ArenaPiece* pieces, int count, int64_t first) {
  int low = 0;
  int high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (pieces[middle].first <= first) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return pieces[low].begin + (first - pieces[low].first);
}

// The values i .. i + 3 of `count`, zeros beyond.
__device__ inline void Load4(const float* array, int i, int count, float (&out)[4]) {
  if (i + 4 <= count) {
    const float4 four = *reinterpret_cast<const float4*>(array + i);
    out[0] = four.x;
    out[1] = four.y;
    out[2] = four.z;
    out[3] = four.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) out[j] = i + j < count ? array[i + j] : 0.0F;
}

__device__ inline void Store4(const float (&values)[4], float* array, int i, int count) {
  if (i + 4 <= count) {
    *reinterpret_cast<float4*>(array + i) = make_float4(values[0], values[1], values[2], values[3]);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (i + j < count) array[i + j] = values[j];
  }
}

// Bytes that hold the codes of four values. Of one bit they are half a byte, low bits first.
template <int kBits>
inline constexpr int kThreadBytes = kBits == 1 ? 1 : kBits / 2;

// The same of fewer, at a chunk's end.
template <int kBits>
__device__ inline int CodeBytes(int values) {
  return ((values < 4 ? values : 4) * kBits + 7) / 8;
}

template <int kBytes>
struct CodeWord;
template <>
struct CodeWord<1> {
  using Type = uint8_t;
};
template <>
struct CodeWord<2> {
  using Type = uint16_t;
};
template <>
struct CodeWord<4> {
  using Type = uint32_t;
};
template <>
struct CodeWord<8> {
  using Type = unsigned long long;
};

template <int kBytes>
__device__ inline bool IsWhole(const uint8_t* bytes, int valid) {
  return valid == kBytes && reinterpret_cast<uintptr_t>(bytes) % kBytes == 0;
}

template <int kBytes>
__device__ inline void StoreCodes(unsigned long long codes, uint8_t* out, int valid) {
  using Word = typename CodeWord<kBytes>::Type;
  if (IsWhole<kBytes>(out, valid)) {
    *reinterpret_cast<Word*>(out) = static_cast<Word>(codes);
    return;
  }
  for (int i = 0; i < valid; ++i) out[i] = static_cast<uint8_t>(codes >> (8 * i));
}

template <int kBytes>
__device__ inline unsigned long long LoadCodes(const uint8_t* bytes, int valid) {
  using Word = typename CodeWord<kBytes>::Type;
  if (IsWhole<kBytes>(bytes, valid)) return *reinterpret_cast<const Word*>(bytes);
  unsigned long long codes = 0;
  for (int i = 0; i < valid; ++i) codes |= static_cast<unsigned long long>(bytes[i]) << (8 * i);
  return codes;
}

// Notes a refused value of the block's chunk. `refused` is the block's.
__device__ inline void Refuse(Refusal* refusal, int index_in_chunk, int* refused) {
  *refused = 1;
  const auto index = static_cast<unsigned long long>(blockIdx.x) * kChunkValues +
                     static_cast<unsigned long long>(index_in_chunk);
  atomicMax(&refusal->index_inverted, ~index);
}

// Bytes of a whole chunk in codes of kBits.
template <int kBits, int kScaleBytes>
__device__ inline int64_t WholeChunkBytes() {
  return int64_t{kChunkValues} * kBits / 8 + kChunkValues / kBlockValues * kScaleBytes;
}

// The first gap that ends behind value `first`.
__device__ inline int FirstGap(const EncodeJob& job, int64_t first) {
  int low = 0;
  int high = job.gap_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (job.gaps[middle].end <= first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The input of an encoder's chunk.
struct ChunkInput {
  __device__ explicit ChunkInput(const EncodeJob& job)
      : first(int64_t{blockIdx.x} * kChunkValues),
        count(ChunkCount(job.values)),
        base(job.base == nullptr ? nullptr : job.base + first),
        target(job.target +
               (job.pieces == nullptr ? first : InArena(job.pieces, job.piece_count, first))),
        sign_flip(job.negates_target ? 0x80000000U : 0U),
        residual(job.residual == nullptr ? nullptr : job.residual + first),
        decay(job.decay),
        gaps(job.gaps),
        gap_count(job.gap_count),
        first_gap(FirstGap(job, first)) {}

  // Zeros beyond the chunk's end.
  __device__ void Load(int i, float (&bases)[4], float (&targets)[4]) const {
    Load4(target, i, count, targets);
    if (base == nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) bases[j] = 0.0F;
    } else {
      Load4(base, i, count, bases);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < count) targets[j] = __uint_as_float(__float_as_uint(targets[j]) ^ sign_flip);
    }
    ForMirrored(
        i, [&](int j, int source) { targets[j] = bases[j] - (base[source] - target[source]); });
  }

  template <bool kFeedback>
  __device__ void LoadDifferences(int i, float (&difference)[4]) const {
    float bases[4];
    float targets[4];
    Load(i, bases, targets);
#pragma unroll
    for (int j = 0; j < 4; ++j) difference[j] = bases[j] - targets[j];
    if constexpr (kFeedback) {
      float kept[4];
      LoadResidual(i, kept);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < count) difference[j] += decay * kept[j];
      }
    }
  }

  __device__ void LoadResidual(int i, float (&kept)[4]) const {
    Load4(residual, i, count, kept);
    ForMirrored(i, [&](int j, int source) { kept[j] = residual[source]; });
  }

  // Calls mirror(j, source) for those of the values i .. i + 3 that mirror another of the chunk.
  template <typename Mirror>
  __device__ void ForMirrored(int i, Mirror mirror) const {
    for (int at = first_gap; at < gap_count && gaps[at].begin < first + count; ++at) {
      const MirroredGap gap = gaps[at];
      for (int j = 0; j < 4; ++j) {
        const int64_t into = first + i + j - gap.begin;
        if (into < 0 || first + i + j >= gap.end) continue;
        mirror(j, static_cast<int>(gap.source + into % (gap.begin - gap.source) - first));
      }
    }
  }

  int64_t first;
  int count;
  const float* base;
  const float* target;
  unsigned sign_flip;
  float* residual;
  float decay;
  const MirroredGap* gaps;
  int gap_count;
  int first_gap;
};

// Calls use(Format()) for a codec with scales.
template <typename Use>
void WithBlockFormat(DeviceCodec codec, Use use) {
  switch (codec) {
    case DeviceCodec::kInt8:
      return use(Int8Format());
    case DeviceCodec::kInt4:
      return use(Int4Format());
    case DeviceCodec::kE3m0:
      return use(E3m0Format());
    case DeviceCodec::kE2m1:
      return use(E2m1Format());
    case DeviceCodec::kLm2:
      return use(Lm2Format());
    case DeviceCodec::kSign1:
      return use(Sign1Format());
    case DeviceCodec::kFp32:
    case DeviceCodec::kBf16:
      return;
  }
}

__device__ inline int BlocksOf(int values) { return (values + kBlockValues - 1) / kBlockValues; }

}  // namespace causeway::worker::cuda
