// The weighted sum of many contributions in a 4-bit codec, block by block in registers: what a
// merge with many workers spends its time on. A code has 16 meanings, so each block of each
// contribution gets a table of the 16 products weight * value, in double, and a value costs a
// shift, a look-up and a sum. The products are those of the scalar code, added in the same order.
//
// Only AVX-512 looks up 16 doubles at once; elsewhere there is no such kernel, and contributions
// are accumulated one after the other.
#if defined(CAUSEWAY_COMMON_CODEC_WEIGHTED_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_COMMON_CODEC_WEIGHTED_SUM_INL_H_
#undef CAUSEWAY_COMMON_CODEC_WEIGHTED_SUM_INL_H_
#else
#define CAUSEWAY_COMMON_CODEC_WEIGHTED_SUM_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "common/codec/block_kernels-inl.h"
#include "common/codec/codec_kernels.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::HWY_NAMESPACE {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// The products of one contribution's block, by code. What is no code is a NaN, which no later sum
// loses: one look at the sums of a block tells whether all of its codes were good.
class ProductTable {
 public:
  // False if the scale is none, or is zero and the codes are not.
  template <class Format>
  HWY_INLINE bool Load(const uint8_t* scale_bytes, const uint8_t* codes, double weight) {
    static_assert(Format::kBits == 4);
    uint16_t scale_bits;
    std::memcpy(&scale_bits, scale_bytes, sizeof(scale_bits));
    if (scale_bits < kSmallestScaleBits || scale_bits > kLargestScaleBits) {
      if (scale_bits != 0 ||
          !std::all_of(codes, codes + kCodecBlock / 2, [](uint8_t byte) { return byte == 0; })) {
        return false;
      }
    }
    const hn::FixedTag<float, 16> d;
    const typename Format::Decoder decoder(Bf16ToFloat(scale_bits));
    const auto levels = hn::Load(d, kLevels<Format>.values);
    const auto values = hn::Mul(levels, hn::Set(d, decoder.unit));
    const hn::FixedTag<double, 8> dd;
    const auto factor = hn::Set(dd, weight);
    low_ = hn::Mul(factor, hn::PromoteTo(dd, hn::LowerHalf(values)));
    high_ = hn::Mul(factor, hn::PromoteTo(dd, hn::UpperHalf(hn::Half<decltype(d)>(), values)));
    return true;
  }

  // The products of the 8 codes in the 4 bytes at `codes`, in order.
  HWY_INLINE hn::Vec<hn::FixedTag<double, 8>> Products(const uint8_t* codes) const {
    int32_t eight;
    std::memcpy(&eight, codes, sizeof(eight));
    // Lane i has code i in its lowest bits. The look-up ignores all others.
    const __m512i shifts = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i index = _mm512_srlv_epi64(_mm512_set1_epi32(eight), shifts);
    return {_mm512_permutex2var_pd(low_.raw, index, high_.raw)};
  }

 private:
  template <class Format>
  struct Levels {
    constexpr Levels() : values() {
      for (uint8_t code = 0; code < 16; ++code) {
        const int8_t level = Format::kLevels[code];
        values[code] =
            level == kNoLevel ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(level);
      }
    }
    alignas(64) float values[16];
  };
  template <class Format>
  static constexpr Levels<Format> kLevels = {};

  hn::Vec<hn::FixedTag<double, 8>> low_, high_;
};

template <class Format>
size_t WeightedSum(std::span<const WeightedBlocks> parts, size_t blocks,
                   std::span<const float* const> upcoming, double* sum) {
  constexpr size_t kScaleBytes = BlockVectors<Format>::kScaleBytes;
  constexpr size_t kCodeBytes = BlockVectors<Format>::kCodeBytes;
  constexpr size_t kLineValues = 16;  // Floats in a cache line.
  const hn::FixedTag<double, 8> d;
  for (size_t block = 0; block < blocks; ++block) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    for (const float* const array : upcoming) {
      for (size_t i = 0; i < kCodecBlock; i += kLineValues) {
        hwy::Prefetch(array + block * kCodecBlock + i);
      }
    }
    for (const WeightedBlocks& part : parts) {
      const uint8_t* const codes = part.codes + block * kCodeBytes;
      if (block % 2 == 0) PrefetchAhead(codes, 2 * kCodeBytes);
      ProductTable table;
      if (!table.Load<Format>(part.scales + block * kScaleBytes, codes, part.weight)) return block;
      s0 = hn::Add(s0, table.Products(codes));
      s1 = hn::Add(s1, table.Products(codes + 4));
      s2 = hn::Add(s2, table.Products(codes + 8));
      s3 = hn::Add(s3, table.Products(codes + 12));
      s4 = hn::Add(s4, table.Products(codes + 16));
      s5 = hn::Add(s5, table.Products(codes + 20));
      s6 = hn::Add(s6, table.Products(codes + 24));
      s7 = hn::Add(s7, table.Products(codes + 28));
    }
    const auto all = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                             hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
    if (!hn::AllTrue(d, hn::Eq(all, all))) return block;
    double* const out = sum + block * kCodecBlock;
    hn::StoreU(s0, d, out);
    hn::StoreU(s1, d, out + 8);
    hn::StoreU(s2, d, out + 16);
    hn::StoreU(s3, d, out + 24);
    hn::StoreU(s4, d, out + 32);
    hn::StoreU(s5, d, out + 40);
    hn::StoreU(s6, d, out + 48);
    hn::StoreU(s7, d, out + 56);
  }
  return blocks;
}

template <class Format>
constexpr WeightedSumKernel WeightedSumOf() {
  return &WeightedSum<Format>;
}

#else

template <class Format>
constexpr WeightedSumKernel WeightedSumOf() {
  return nullptr;
}

#endif
}  // namespace causeway::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
