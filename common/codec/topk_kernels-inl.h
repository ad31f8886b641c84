// The selection of TOPK2, compiled once per instruction set; topk_codec.cc has the plain one.
//
// The largest of every 16 values first: the most-th largest of those is a threshold that at least
// `most` values reach, and hardly more of them in ordinary data. Those that do are the candidates,
// among which the exact threshold is sought, bit by bit.
#if defined(CAUSEWAY_COMMON_CODEC_TOPK_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_COMMON_CODEC_TOPK_KERNELS_INL_H_
#undef CAUSEWAY_COMMON_CODEC_TOPK_KERNELS_INL_H_
#else
#define CAUSEWAY_COMMON_CODEC_TOPK_KERNELS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/codec/codec_kernels.h"
#include "common/codec/kernel_loops-inl.h"
#include "common/codec/topk_codec.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

// Asks for the next chunk's memory, a little with every step of the search, which itself needs
// none: subtracting would otherwise wait for memory, and memory for the search.
class NextChunk {
 public:
  NextChunk(const float* base, const float* target, const float* residual)
      : arrays_{base + kCodecChunk, target + kCodecChunk,
                residual == nullptr ? nullptr : residual + kCodecChunk} {}

  HWY_INLINE void AskForMore() {
    if (asked_ == kCodecChunk) return;
    constexpr size_t kCacheLine = 64 / sizeof(float);
    constexpr size_t kLines = 4;
    for (size_t i = 0; i < kLines; ++i, asked_ += kCacheLine) {
      hwy::Prefetch(arrays_[0] + asked_);
      hwy::Prefetch(arrays_[1] + asked_);
      if (arrays_[2] != nullptr) hwy::Prefetch(arrays_[2] + asked_);
    }
  }

 private:
  const float* arrays_[3];
  size_t asked_ = 0;
};

// Values of a strip, which has kStripGroups groups of 16, each in one lane of consecutive vectors.
inline constexpr size_t kStrip = 256;
inline constexpr size_t kStripGroups = kStrip / 16;

// The differences of a strip, and the largest magnitude's bits of each of its groups.
template <bool kFeedback>
HWY_INLINE void SubtractStrip(const float* base, const float* target, const float* residual,
                              float decay, float* difference, int32_t* groups) {
  const FloatTag d;
  for (size_t group = 0; group < kStripGroups; group += kLanes) {
    auto largest = hn::Zero(IntTag());
    const size_t begin = group * 16;
    for (size_t i = begin; i < begin + 16 * kLanes; i += kLanes) {
      auto x = hn::Sub(hn::LoadU(d, base + i), hn::LoadU(d, target + i));
      if constexpr (kFeedback) x = hn::Add(x, Remembered(residual + i, decay));
      largest = hn::Max(largest, MagnitudeBits(x));
      hn::Store(x, d, difference + i);
    }
    hn::Store(largest, IntTag(), groups + group);
  }
}

// The same of a chunk. The differences are filled up with zeros to whole strips, whose number is
// returned.
template <bool kFeedback>
size_t SubtractChunk(const float* base, const float* target, const float* residual, float decay,
                     size_t values, float* difference, int32_t* groups) {
  const size_t whole = values / kStrip;
  for (size_t strip = 0; strip < whole; ++strip) {
    SubtractStrip<kFeedback>(base, target, residual, decay, difference, groups);
    base += kStrip;
    target += kStrip;
    if constexpr (kFeedback) residual += kStrip;
    difference += kStrip;
    groups += kStripGroups;
  }
  const size_t rest = values % kStrip;
  if (rest == 0) return whole;
  float base_rest[kStrip] = {};
  float target_rest[kStrip] = {};
  float residual_rest[kStrip] = {};
  std::memcpy(base_rest, base, rest * sizeof(float));
  std::memcpy(target_rest, target, rest * sizeof(float));
  if constexpr (kFeedback) std::memcpy(residual_rest, residual, rest * sizeof(float));
  SubtractStrip<kFeedback>(base_rest, target_rest, residual_rest, decay, difference, groups);
  return whole + 1;
}

// The largest number that has the bits `prefix` above `bit`, zeros below `last_bit`, and is reached
// by at least `rank` of the numbers; `prefix` if there is none above it. `count` is a multiple of
// kLanes.
HWY_INLINE int32_t RankedBits(const int32_t* numbers, size_t count, size_t rank, int32_t prefix,
                              int bit, int last_bit, NextChunk& next) {
  const IntTag d;
  int32_t found = prefix;
  for (; bit >= last_bit; --bit) {
    next.AskForMore();
    const int32_t tried = found | int32_t{1} << bit;
    const auto threshold = hn::Set(d, tried - 1);
    auto reached = hn::Zero(d);
    for (size_t i = 0; i < count; i += kLanes) {
      // A mask is -1 where it is true.
      reached = hn::Sub(reached, hn::VecFromMask(d, hn::Gt(hn::Load(d, numbers + i), threshold)));
    }
    const int32_t total = hn::GetLane(hn::SumOfLanes(d, reached));
    if (static_cast<size_t>(total) >= rank) found = tried;
  }
  return found;
}

// The indices and magnitudes of the differences that reach `threshold`; returns their number.
inline size_t Candidates(const float* difference, size_t values, int32_t threshold,
                         uint16_t* indices, int32_t* magnitudes, NextChunk& next) {
  const FloatTag d;
  const IntTag di;
  const auto below = hn::Set(di, threshold - 1);
  const auto reached = [&](size_t i) HWY_ATTR {
    return hn::Gt(MagnitudeBits(hn::Load(d, difference + i)), below);
  };
  uint64_t words[kCodecChunk / 64];
  const auto bytes = reinterpret_cast<uint8_t*>(words);
  for (size_t i = 0; i < values; i += HWY_MAX(kLanes, size_t{8})) {
    if constexpr (kLanes >= 8) {
      hn::StoreMaskBits(di, reached(i), bytes + i / 8);
    } else {
      uint8_t low = 0;
      uint8_t high = 0;
      hn::StoreMaskBits(di, reached(i), &low);
      hn::StoreMaskBits(di, reached(i + 4), &high);
      bytes[i / 8] = static_cast<uint8_t>(low | high << 4);
    }
  }
  size_t count = 0;
  for (size_t i = 0; i < values; i += 64) {
    next.AskForMore();
    // Most often there are up to kAtOnce: writing so many, or what follows the last of them, takes
    // no guess of a branch.
    constexpr size_t kAtOnce = 4;
    uint64_t word = words[i / 64];
    const auto found = static_cast<size_t>(std::popcount(word));
    for (size_t j = 0; j < kAtOnce || word != 0; ++j) {
      indices[count + j] = static_cast<uint16_t>(i + static_cast<size_t>(std::countr_zero(word)));
      word &= word - 1;
    }
    count += found;
  }
  for (size_t i = 0; i < count; ++i) {
    magnitudes[i] = std::bit_cast<int32_t>(difference[indices[i]]) & 0x7fffffff;
  }
  return count;
}

HWY_INLINE int32_t LargestOf(const int32_t* numbers, size_t count) {
  const IntTag d;
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < count; i += kLanes) {
    largest = hn::Max(largest, hn::Load(d, numbers + i));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

inline size_t SelectTopK(const float* base, const float* target, const float* residual, float decay,
                         size_t values, size_t most, float* difference, uint16_t* selected) {
  HWY_ALIGN int32_t groups[kCodecChunk / 16];
  const size_t strips =
      residual == nullptr
          ? SubtractChunk<false>(base, target, residual, decay, values, difference, groups)
          : SubtractChunk<true>(base, target, residual, decay, values, difference, groups);
  const size_t group_count = strips * kStripGroups;
  const int32_t largest = LargestOf(groups, group_count);
  if (largest > kTopKLargestBits) return kTopKNotSelected;
  if (largest < kTopKSmallestBits) return 0;

  NextChunk next(base, target, residual);
  // A bound as coarse as a bf16 lets in a few candidates more, for half the steps.
  const int32_t bound =
      std::max(RankedBits(groups, group_count, most, 0, 30, 16, next), kTopKSmallestBits);
  uint16_t indices[kCodecChunk + 4];  // Candidates writes a few more.
  HWY_ALIGN int32_t magnitudes[kCodecChunk];
  const size_t count = Candidates(difference, strips * kStrip, bound, indices, magnitudes, next);
  if (count <= most) {
    std::copy(indices, indices + count, selected);
    return count;
  }
  const size_t padded = (count + kLanes - 1) / kLanes * kLanes;
  std::fill(magnitudes + count, magnitudes + padded, 0);
  // All lie between the bound and the largest: the bits that these share are known.
  const int top = 31 - std::countl_zero(static_cast<uint32_t>(bound ^ largest));
  const int32_t prefix = top < 0 ? bound : bound >> (top + 1) << (top + 1);
  const int32_t least = RankedBits(magnitudes, padded, most, prefix, top, 0, next);
  size_t reached = 0;
  for (size_t i = 0; i < count; ++i) reached += magnitudes[i] >= least ? 1 : 0;
  // Several may equal the least: the last of them are dropped.
  for (size_t i = count; reached > most; --i) {
    if (magnitudes[i - 1] != least) continue;
    magnitudes[i - 1] = 0;
    --reached;
  }
  size_t taken = 0;
  for (size_t i = 0; i < count; ++i) {
    selected[taken] = indices[i];
    taken += magnitudes[i] >= least ? 1 : 0;
  }
  return taken;
}

inline void SplitTopK(const double* magnitudes, double threshold, TopKSums& sums) {
  const DoubleTag d;
  const auto limit = hn::Set(d, threshold);
  for (size_t lane = 0; lane < kTopKSums; lane += kLanes / 2) {
    auto small = hn::Zero(d);
    auto large = hn::Zero(d);
    auto count = hn::Zero(d);
    for (size_t i = lane; i < kTopK; i += kTopKSums) {
      const auto x = hn::LoadU(d, magnitudes + i);
      const auto is_large = hn::Gt(x, limit);
      small = hn::Add(small, hn::IfThenZeroElse(is_large, x));
      large = hn::Add(large, hn::IfThenElseZero(is_large, x));
      count = hn::Add(count, hn::IfThenElseZero(is_large, hn::Set(d, 1.0)));
    }
    hn::StoreU(small, d, sums.small.data() + lane);
    hn::StoreU(large, d, sums.large.data() + lane);
    hn::StoreU(count, d, sums.large_count.data() + lane);
  }
}

inline const TopKKernels* VectorTopKKernels() {
  static constexpr TopKKernels kKernels = {.select = &SelectTopK, .split = &SplitTopK};
  return &kKernels;
}

#endif  // A target with vectors.
}  // namespace causeway::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
