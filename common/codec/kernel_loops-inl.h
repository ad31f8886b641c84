// Shared by all vector kernels of the codecs, compiled once per instruction set: the walk over
// whole blocks for everything that carries the fp32 difference. A derived way to encode and decode
// one block is a class Vectors with
//
//   kScaleBytes, kCodeBytes        of a block
//   Encode<feedback>(difference, largest, scale, codes, residual)
//                                  `largest` is Subtract's; false if the scalar code must take the
//                                  block, with nothing written; `residual` receives what the codes
//                                  leave out if there is feedback
//   Decoder: Load(scale, codes)    false if the scalar code must take the block
//            Values(d, i)          the fp32 differences i, i + 1, ... as many as d has lanes
//
// Products and sums are never contracted: every operation here is one of the scalar code's.
#if defined(CAUSEWAY_COMMON_CODEC_KERNEL_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_COMMON_CODEC_KERNEL_LOOPS_INL_H_
#undef CAUSEWAY_COMMON_CODEC_KERNEL_LOOPS_INL_H_
#else
#define CAUSEWAY_COMMON_CODEC_KERNEL_LOOPS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"
#include "common/codec/codec_kernels.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

namespace hn = hwy::HWY_NAMESPACE;

// 4, 8 or 16 values at a time.
#if HWY_HAVE_SCALABLE
inline constexpr size_t kLanes = 4;
#else
inline constexpr size_t kLanes = HWY_MIN(size_t{HWY_MAX_BYTES}, size_t{64}) / sizeof(float);
#endif
using FloatTag = hn::FixedTag<float, kLanes>;
using IntTag = hn::RebindToSigned<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
// As many bytes as a double vector has values.
using DoubleTag = hn::FixedTag<double, kLanes / 2>;
using HalfFloatTag = hn::Rebind<float, DoubleTag>;
using Floats = hn::Vec<FloatTag>;
using Bits = hn::Vec<BitsTag>;

inline constexpr int32_t kInfinityBits = 0x7f800000;

// The bits of |x|, which order magnitudes; NaNs come after infinity, and that after all others.
inline hn::Vec<IntTag> MagnitudeBits(Floats x) { return hn::BitCast(IntTag(), hn::Abs(x)); }

// How far ahead of its use memory is asked for: the arithmetic of a block is a long chain, behind
// which too few loads are under way otherwise.
inline constexpr size_t kAheadBytes = 2048;

// Asks for the block's worth of memory that is kAheadBytes after `block`, whether it exists or not.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* block, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  for (size_t i = 0; i < bytes; i += kCacheLine) {
    hwy::Prefetch(reinterpret_cast<const uint8_t*>(block) + kAheadBytes + i);
  }
}

// Residuals that error feedback adds to the differences i, i + 1, ...
HWY_INLINE Floats Remembered(const float* residual, float decay) {
  const FloatTag d;
  return hn::Mul(hn::Set(d, decay), hn::LoadU(d, residual));
}

// The differences of a block; returns the largest of their magnitudes' bits.
template <bool kFeedback>
HWY_INLINE int32_t Subtract(const float* base, const float* target, const float* residual,
                            float decay, float* difference) {
  const FloatTag d;
  auto largest = hn::Zero(IntTag());
  for (size_t i = 0; i < kCodecBlock; i += kLanes) {
    auto x = hn::Sub(hn::LoadU(d, base + i), hn::LoadU(d, target + i));
    if constexpr (kFeedback) x = hn::Add(x, Remembered(residual + i, decay));
    largest = hn::Max(largest, MagnitudeBits(x));
    hn::Store(x, d, difference + i);
  }
  return hn::GetLane(hn::MaxOfLanes(IntTag(), largest));
}

template <typename Vectors, bool kFeedback>
size_t EncodeBlocks(const float* base, const float* target, float* residual, float decay,
                    size_t blocks, uint8_t* scales, uint8_t* codes) {
  HWY_ALIGN float difference[kCodecBlock];
  for (size_t block = 0; block < blocks; ++block) {
    PrefetchAhead(base, kCodecBlock * sizeof(float));
    PrefetchAhead(target, kCodecBlock * sizeof(float));
    if constexpr (kFeedback) PrefetchAhead(residual, kCodecBlock * sizeof(float));
    const int32_t largest = Subtract<kFeedback>(base, target, residual, decay, difference);
    if (!Vectors::template Encode<kFeedback>(difference, largest, scales, codes, residual)) {
      return block;
    }
    if constexpr (kFeedback) residual += kCodecBlock;
    base += kCodecBlock;
    target += kCodecBlock;
    scales += Vectors::kScaleBytes;
    codes += Vectors::kCodeBytes;
  }
  return blocks;
}

template <typename Vectors>
size_t Encode(const float* base, const float* target, float* residual, float decay, size_t blocks,
              uint8_t* scales, uint8_t* codes) {
  return residual == nullptr
             ? EncodeBlocks<Vectors, false>(base, target, residual, decay, blocks, scales, codes)
             : EncodeBlocks<Vectors, true>(base, target, residual, decay, blocks, scales, codes);
}

template <typename Vectors>
size_t Accumulate(const uint8_t* scales, const uint8_t* codes, const float* /*base*/, double weight,
                  size_t blocks, double* sum) {
  const DoubleTag d;
  const auto factor = hn::Set(d, weight);
  typename Vectors::Decoder decoder;
  for (size_t block = 0; block < blocks; ++block) {
    if (!decoder.Load(scales, codes)) return block;
    for (size_t i = 0; i < kCodecBlock; i += kLanes / 2) {
      const auto delta = hn::PromoteTo(d, decoder.Values(HalfFloatTag(), i));
      hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::Mul(factor, delta)), d, sum + i);
    }
    scales += Vectors::kScaleBytes;
    codes += Vectors::kCodeBytes;
    sum += kCodecBlock;
  }
  return blocks;
}

// Subtracts the decoded block from `values`; false, with `target` unspecified, if a result is not
// finite.
template <typename Decoder>
HWY_INLINE bool Target(const Decoder& decoder, const float* values, float* target) {
  const FloatTag d;
  auto largest = hn::Zero(IntTag());
  for (size_t i = 0; i < kCodecBlock; i += kLanes) {
    const auto x = hn::Sub(hn::LoadU(d, values + i), decoder.Values(d, i));
    largest = hn::Max(largest, MagnitudeBits(x));
    hn::Store(x, d, target + i);
  }
  return hn::AllTrue(IntTag(), hn::Lt(largest, hn::Set(IntTag(), kInfinityBits)));
}

template <typename Vectors>
size_t Apply(const uint8_t* scales, const uint8_t* codes, size_t blocks, float* values) {
  const FloatTag d;
  HWY_ALIGN float target[kCodecBlock];
  typename Vectors::Decoder decoder;
  for (size_t block = 0; block < blocks; ++block) {
    PrefetchAhead(values, kCodecBlock * sizeof(float));
    if (!decoder.Load(scales, codes) || !Target(decoder, values, target)) return block;
    for (size_t i = 0; i < kCodecBlock; i += kLanes) {
      hn::StoreU(hn::Load(d, target + i), d, values + i);
    }
    scales += Vectors::kScaleBytes;
    codes += Vectors::kCodeBytes;
    values += kCodecBlock;
  }
  return blocks;
}

// Eight sums, in as many vectors as that takes.
class SquareAdder {
 public:
  explicit HWY_INLINE SquareAdder(const double* sums)
      : first_(hn::LoadU(D(), sums)),
        second_(hn::LoadU(D(), sums + kWidth % kSquareSums)),
        third_(hn::LoadU(D(), sums + 2 * kWidth % kSquareSums)),
        fourth_(hn::LoadU(D(), sums + 3 * kWidth % kSquareSums)) {}

  // values(i) gives value i of a block and those after it, as many as DoubleTag has lanes.
  template <typename Values>
  HWY_INLINE void AddBlock(const Values& values) {
    for (size_t i = 0; i < kCodecBlock; i += kSquareSums) {
      Add(values(i), first_);
      if constexpr (kWidth < kSquareSums) Add(values(i + kWidth), second_);
      if constexpr (2 * kWidth < kSquareSums) {
        Add(values(i + 2 * kWidth), third_);
        Add(values(i + 3 * kWidth), fourth_);
      }
    }
  }

  HWY_INLINE void Store(double* sums) const {
    hn::StoreU(first_, D(), sums);
    if constexpr (kWidth < kSquareSums) hn::StoreU(second_, D(), sums + kWidth);
    if constexpr (2 * kWidth < kSquareSums) {
      hn::StoreU(third_, D(), sums + 2 * kWidth);
      hn::StoreU(fourth_, D(), sums + 3 * kWidth);
    }
  }

 private:
  using D = DoubleTag;
  using Doubles = hn::Vec<D>;
  static constexpr size_t kWidth = kLanes / 2;
  static_assert(kSquareSums % kWidth == 0 && 4 * kWidth >= kSquareSums);
  static HWY_INLINE void Add(Doubles x, Doubles& sum) { sum = hn::Add(sum, hn::Mul(x, x)); }

  Doubles first_, second_, third_, fourth_;
};

template <typename Vectors>
size_t Squares(const uint8_t* scales, const uint8_t* codes, const float* /*base*/, size_t blocks,
               double* sums) {
  SquareAdder adder(sums);
  typename Vectors::Decoder decoder;
  size_t block = 0;
  for (; block < blocks && decoder.Load(scales, codes); ++block) {
    adder.AddBlock([&](size_t i) HWY_ATTR {
      return hn::PromoteTo(DoubleTag(), decoder.Values(HalfFloatTag(), i));
    });
    scales += Vectors::kScaleBytes;
    codes += Vectors::kCodeBytes;
  }
  adder.Store(sums);
  return block;
}

template <typename Vectors>
const CodecKernels* DifferenceKernels() {
  static constexpr CodecKernels kKernels = {.encode = &Encode<Vectors>,
                                            .accumulate = &Accumulate<Vectors>,
                                            .apply = &Apply<Vectors>,
                                            .squares = &Squares<Vectors>};
  return &kKernels;
}

#endif  // A target with vectors.
}  // namespace causeway::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
