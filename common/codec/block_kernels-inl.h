// The codecs with a scale per block, compiled once per instruction set; block_formats.h has the
// scalar code, whose scalars per block (inverse, unit, step) are used here as they are.
//
// Between values and packed codes lie bytes: a code each when encoding more than 2 bits, a signed
// level each when decoding, of which the value is a product with the block's unit. 16 of them fill
// the smallest vector, so packing and unpacking look the same on every target.
#if defined(CAUSEWAY_COMMON_CODEC_BLOCK_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAUSEWAY_COMMON_CODEC_BLOCK_KERNELS_INL_H_
#undef CAUSEWAY_COMMON_CODEC_BLOCK_KERNELS_INL_H_
#else
#define CAUSEWAY_COMMON_CODEC_BLOCK_KERNELS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/codec/block_formats.h"
#include "common/codec/codec.h"
#include "common/codec/codec_layout.h"
#include "common/codec/kernel_loops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace causeway::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

using ByteTag = hn::FixedTag<uint8_t, 16>;
using LevelTag = hn::FixedTag<int8_t, 16>;
using Bytes16 = hn::Vec<ByteTag>;
using Levels16 = hn::Vec<LevelTag>;

// --- Codes of 16 values, in the low bits of a byte each, to and from packed bytes ---------------

template <int kBits>
HWY_INLINE void Pack(Bytes16 codes, uint8_t* out) {
  const ByteTag d8;
  const hn::Repartition<uint16_t, ByteTag> d16;
  if constexpr (kBits == 8) {
    hn::StoreU(codes, d8, out);
  } else {
    static_assert(kBits == 4);
    const auto pairs = hn::BitCast(d16, codes);
    const hn::FixedTag<uint8_t, 8> packed;
    hn::StoreU(hn::TruncateTo(packed, hn::Or(pairs, hn::ShiftRight<4>(pairs))), packed, out);
  }
}

HWY_INLINE Bytes16 ShiftRightBytes4(Bytes16 v) {
  const hn::Repartition<uint16_t, ByteTag> d16;
  const auto shifted = hn::BitCast(ByteTag(), hn::ShiftRight<4>(hn::BitCast(d16, v)));
  return hn::And(shifted, hn::Set(ByteTag(), uint8_t{15}));
}

// The 64 codes of a block, `use(i, codes i .. i + 15)` for each 16 of them.
template <int kBits, class Use>
HWY_INLINE void Unpack(const uint8_t* packed, Use& use) {
  const ByteTag d;
  if constexpr (kBits == 8) {
    for (size_t i = 0; i < kCodecBlock; i += 16) use(i, hn::LoadU(d, packed + i));
  } else if constexpr (kBits == 4) {
    for (size_t i = 0; i < kCodecBlock; i += 32) {
      const auto bytes = hn::LoadU(d, packed + i / 2);
      const auto even = hn::And(bytes, hn::Set(d, uint8_t{15}));
      const auto odd = ShiftRightBytes4(bytes);
      use(i, hn::InterleaveLower(d, even, odd));
      use(i + 16, hn::InterleaveUpper(d, even, odd));
    }
  } else if constexpr (kBits == 1) {
    uint8_t bits[kCodecBlock / 8 + 6];  // LoadMaskBits may read 8 bytes.
    std::memcpy(bits, packed, kCodecBlock / 8);
    for (size_t i = 0; i < kCodecBlock; i += 16) {
      use(i, hn::IfThenElseZero(hn::LoadMaskBits(d, bits + i / 8), hn::Set(d, uint8_t{1})));
    }
  } else {
    static_assert(kBits == 2);
    const auto three = hn::Set(d, uint8_t{3});
    const hn::Repartition<uint16_t, ByteTag> d16;
    const auto bytes = hn::LoadU(d, packed);
    const auto high = ShiftRightBytes4(bytes);
    const auto bits_from_2 = [=](Bytes16 v) HWY_ATTR {
      return hn::And(hn::BitCast(ByteTag(), hn::ShiftRight<2>(hn::BitCast(d16, v))), three);
    };
    const auto code0 = hn::And(bytes, three);
    const auto code1 = bits_from_2(bytes);
    const auto code2 = hn::And(high, three);
    const auto code3 = bits_from_2(high);
    const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d, code0, code1));
    const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d, code2, code3));
    const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d, code0, code1));
    const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d, code2, code3));
    use(0, hn::BitCast(d, hn::InterleaveLower(d16, low01, low23)));
    use(16, hn::BitCast(d, hn::InterleaveUpper(d16, low01, low23)));
    use(32, hn::BitCast(d, hn::InterleaveLower(d16, high01, high23)));
    use(48, hn::BitCast(d, hn::InterleaveUpper(d16, high01, high23)));
  }
}

// --- Formats -------------------------------------------------------------------------------------
// Each has
//   kBits, ScaleBits(difference, largest)   Scale of block_formats.h
//   Encoder(scale).Codes(x)                 a code per lane, in the lowest bits of 8; or
//   EncodeBlock<feedback>(scale, x, codes, residual)
//   Levels(codes)                           a signed level per code; kNoLevel for what is none
//   Decoder(scale).Values(d, levels)        of the levels as int32

inline constexpr int8_t kNoLevel = -128;

struct LargestMagnitude {
  static HWY_INLINE uint16_t ScaleBits(const float* /*difference*/, int32_t largest) {
    return Bf16RoundedUp(std::bit_cast<float>(largest));
  }
};

// Values are levels times a unit.
struct LevelDecoder {
  template <class D, class V>
  HWY_INLINE hn::Vec<D> Values(D d, V levels) const {
    return hn::Mul(hn::ConvertTo(d, levels), hn::Set(d, unit));
  }
  float unit;
};

HWY_INLINE Levels16 LookUp(const int8_t* levels_of_codes, Bytes16 codes) {
  return hn::BitCast(LevelTag(),
                     hn::TableLookupBytes(hn::Load(LevelTag(), levels_of_codes), codes));
}

template <class Scalar>
struct LinearVectors : LargestMagnitude {
  static constexpr int kBits = Scalar::kBits;
  // Level of each 4-bit code.
  alignas(16) static constexpr int8_t kLevels[16] = {0,        1,  2,  3,  4,  5,  6,  7,
                                                     kNoLevel, -7, -6, -5, -4, -3, -2, -1};

  struct Encoder {
    explicit Encoder(float scale) : scalar(scale) {}
    // RoundHalfEven's first sum has the integer in its lowest bits, in two's complement.
    HWY_INLINE Bits Codes(Floats x) const {
      const FloatTag d;
      const auto scaled = hn::Mul(x, hn::Set(d, scalar.inverse));
      const auto bits = hn::BitCast(BitsTag(), hn::Add(scaled, hn::Set(d, 0x1.8p23F)));
      return hn::And(bits, hn::Set(BitsTag(), uint32_t{Scalar::kMask}));
    }
    typename Scalar::Encoder scalar;
  };

  static HWY_INLINE Levels16 Levels(Bytes16 codes) {
    if constexpr (kBits == 8) return hn::BitCast(LevelTag(), codes);
    return LookUp(kLevels, codes);
  }

  struct Decoder : LevelDecoder {
    explicit Decoder(float scale) : LevelDecoder{typename Scalar::Decoder(scale).step} {}
  };
};

using Int8Vectors = LinearVectors<Int8Format>;
using Int4Vectors = LinearVectors<Int4Format>;

// Level 0 has no sign. A level above 0 comes of an x that is not 0, whose sign is its highest bit.
HWY_INLINE Bits WithSign(Bits level, Floats x) {
  const BitsTag d;
  const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(d, x)), hn::Set(d, 8U));
  return hn::Or(level, hn::IfThenZeroElse(hn::Eq(level, hn::Zero(d)), sign));
}

struct E3m0Vectors : LargestMagnitude {
  static constexpr int kBits = 4;

  struct Encoder {
    explicit Encoder(float scale) : scalar(scale) {}
    // The thresholds from 3 units on double, so one is passed per 2^23 of the bits. Where all bits
    // below are 0 there is a tie, and at every other threshold that goes to the level below it:
    // taking 1 from the odd counts moves just those.
    HWY_INLINE Bits Codes(Floats x) const {
      const FloatTag d;
      const IntTag di;
      const auto a = hn::Abs(x);
      const auto beyond =
          hn::Sub(hn::BitCast(di, a), hn::Set(di, std::bit_cast<int32_t>(3 * scalar.unit)));
      const auto odd = hn::And(hn::ShiftRight<23>(beyond), hn::Set(di, 1));
      const auto level = hn::Add(hn::ShiftRight<23>(hn::Sub(beyond, odd)), hn::Set(di, 2));
      const auto is_above_0 = hn::RebindMask(di, hn::Gt(a, hn::Set(d, scalar.unit)));
      const auto least = hn::IfThenElseZero(is_above_0, hn::Set(di, 1));
      return WithSign(hn::BitCast(BitsTag(), hn::Max(level, least)), x);
    }
    E3m0Format::Encoder scalar;
  };

  // In units of 2^-6 times the scale; the products are exact, as are the scalar code's.
  alignas(16) static constexpr int8_t kLevels[16] = {0,        1,  2,  4,  8,  16,  32,  64,
                                                     kNoLevel, -1, -2, -4, -8, -16, -32, -64};
  static HWY_INLINE Levels16 Levels(Bytes16 codes) { return LookUp(kLevels, codes); }

  struct Decoder : LevelDecoder {
    explicit Decoder(float scale) : LevelDecoder{scale * 0x1p-6F} {}
  };
};

struct E2m1Vectors : LargestMagnitude {
  static constexpr int kBits = 4;

  struct Encoder {
    explicit Encoder(float scale) : scalar(scale) {}
    // Below 1 the levels are multiples of a half: the sum with 1.5 * 2^22 has their number in its
    // lowest bits. From 1 on they are the numbers with one bit after the leading one, to which
    // the bits themselves are rounded; 1 is level 2. Ties go to even both times.
    HWY_INLINE Bits Codes(Floats x) const {
      const FloatTag d;
      const BitsTag du;
      const auto a = hn::Mul(hn::Abs(x), hn::Set(d, scalar.inverse));
      const auto halves =
          hn::And(hn::BitCast(du, hn::Add(a, hn::Set(d, 0x1.8p22F))), hn::Set(du, 7U));
      const auto bits = hn::BitCast(du, a);
      const auto odd = hn::And(hn::ShiftRight<22>(bits), hn::Set(du, 1U));
      const auto rounded = hn::ShiftRight<22>(hn::Add(hn::Add(bits, hn::Set(du, 0x1fffffU)), odd));
      constexpr uint32_t kBitsOf1 = std::bit_cast<uint32_t>(1.0F) >> 22;
      const auto level = hn::Sub(rounded, hn::Set(du, kBitsOf1 - 2));
      const auto is_below_1 = hn::RebindMask(du, hn::Lt(a, hn::Set(d, 1.0F)));
      return WithSign(hn::IfThenElse(is_below_1, halves, level), x);
    }
    E2m1Format::Encoder scalar;
  };

  // In units of half a step: halving is exact, so the products round as the scalar code's do.
  alignas(16) static constexpr int8_t kLevels[16] = {0,        1,  2,  3,  4,  6,  8,  12,
                                                     kNoLevel, -1, -2, -3, -4, -6, -8, -12};
  static HWY_INLINE Levels16 Levels(Bytes16 codes) { return LookUp(kLevels, codes); }

  struct Decoder : LevelDecoder {
    explicit Decoder(float scale) : LevelDecoder{E2m1Format::Decoder(scale).step * 0.5F} {}
  };
};

template <class Scalar>
struct MeanVectors {
  static constexpr int kBits = Scalar::kBits;

  static HWY_INLINE uint16_t ScaleBits(const float* difference, int32_t /*largest*/) {
    const DoubleTag d;
    hn::Vec<DoubleTag> sums[kMeanSums / kWidth];
    for (size_t lane = 0; lane < kMeanSums; lane += kWidth) {
      auto sum = hn::Zero(d);
      for (size_t i = lane; i < kCodecBlock; i += kMeanSums) {
        const auto x = hn::PromoteTo(d, hn::LoadU(HalfFloatTag(), difference + i));
        sum = hn::Add(sum, Scalar::kIsRoot ? hn::Mul(x, x) : hn::Abs(x));
      }
      sums[lane / kWidth] = sum;
    }
    return Scalar::ScaleOfSum(Total(sums), kCodecBlock);
  }

  // The code itself.
  static HWY_INLINE Levels16 Levels(Bytes16 codes) { return hn::BitCast(LevelTag(), codes); }

 private:
  static constexpr size_t kWidth = kLanes / 2;

  // The halves are added until one sum is left, as MeanScale::Scale does.
  static HWY_INLINE double Total(const hn::Vec<DoubleTag>* sums) {
    if constexpr (kWidth == 8) {
      return TotalOfLanes(DoubleTag(), sums[0]);
    } else if constexpr (kWidth == 4) {
      return TotalOfLanes(DoubleTag(), hn::Add(sums[0], sums[1]));
    } else {
      return TotalOfLanes(DoubleTag(),
                          hn::Add(hn::Add(sums[0], sums[2]), hn::Add(sums[1], sums[3])));
    }
  }

  template <class D>
  static HWY_INLINE double TotalOfLanes(D d, hn::Vec<D> sums) {
    if constexpr (hn::MaxLanes(D()) == 1) {
      return hn::GetLane(sums);
    } else {
      const hn::Half<D> half;
      return TotalOfLanes(half, hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)));
    }
  }
};

// A bit per lane, the first in the lowest.
template <class Mask>
HWY_INLINE uint64_t BitsOf(Mask mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(FloatTag(), mask, bytes);
  uint64_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

HWY_INLINE Floats WithSignWhere(hn::Mask<FloatTag> negative, Floats magnitude) {
  return hn::Or(magnitude, hn::IfThenElseZero(negative, hn::SignBit(FloatTag())));
}

struct Lm2Vectors : MeanVectors<Lm2Format> {
  template <bool kFeedback>
  static HWY_INLINE void EncodeBlock(float scale, const float* x, uint8_t* codes, float* residual) {
    const FloatTag d;
    const Lm2Format::Encoder encoder(scale);
    const Lm2Format::Decoder decoder(scale);
    uint64_t large = 0;
    uint64_t negative = 0;
    for (size_t i = 0; i < kCodecBlock; i += kLanes) {
      const auto v = hn::Load(d, x + i);
      const auto is_large = hn::Gt(hn::Abs(v), hn::Set(d, encoder.threshold));
      const auto is_negative = hn::Lt(v, hn::Zero(d));
      large |= BitsOf(is_large) << i;
      negative |= BitsOf(is_negative) << i;
      if constexpr (kFeedback) {
        const auto magnitude =
            hn::IfThenElse(is_large, hn::Set(d, decoder.large), hn::Set(d, decoder.small));
        hn::StoreU(hn::Sub(v, WithSignWhere(is_negative, magnitude)), d, residual + i);
      }
    }
    const hn::FixedTag<uint16_t, 8> d16;
    const auto high = hn::BitCast(ByteTag(), hn::ShiftLeft<1>(hn::BitCast(d16, Spread(negative))));
    hn::StoreU(hn::Or(Spread(large), high), ByteTag(), codes);
  }

  // The word's bits at even places: a nibble fills a byte.
  static HWY_INLINE Bytes16 Spread(uint64_t word) {
    alignas(16) static constexpr uint8_t kSpread[16] = {0,  1,  4,  5,  16, 17, 20, 21,
                                                        64, 65, 68, 69, 80, 81, 84, 85};
    const ByteTag d;
    const auto bytes = hn::BitCast(d, hn::Set(hn::FixedTag<uint64_t, 2>(), word));
    const auto low = hn::And(bytes, hn::Set(d, uint8_t{15}));
    return hn::TableLookupBytes(hn::Load(d, kSpread),
                                hn::InterleaveLower(d, low, ShiftRightBytes4(bytes)));
  }

  struct Decoder {
    explicit Decoder(float scale) : scalar(scale) {}
    template <class D, class V>
    HWY_INLINE hn::Vec<D> Values(D d, V codes) const {
      const hn::DFromV<V> di;
      const auto is_large = hn::RebindMask(d, hn::TestBit(codes, hn::Set(di, 1)));
      const auto magnitude =
          hn::IfThenElse(is_large, hn::Set(d, scalar.large), hn::Set(d, scalar.small));
      const auto sign = hn::ShiftLeft<30>(hn::And(codes, hn::Set(di, 2)));
      return hn::Xor(magnitude, hn::BitCast(d, sign));
    }
    Lm2Format::Decoder scalar;
  };
};

struct Sign1Vectors : MeanVectors<Sign1Format> {
  template <bool kFeedback>
  static HWY_INLINE void EncodeBlock(float scale, const float* x, uint8_t* codes, float* residual) {
    const FloatTag d;
    uint64_t negative = 0;
    for (size_t i = 0; i < kCodecBlock; i += kLanes) {
      const auto v = hn::Load(d, x + i);
      const auto is_negative = hn::Lt(v, hn::Zero(d));
      negative |= BitsOf(is_negative) << i;
      if constexpr (kFeedback) {
        const auto left = hn::Sub(v, WithSignWhere(is_negative, hn::Set(d, scale)));
        hn::StoreU(left, d, residual + i);
      }
    }
    std::memcpy(codes, &negative, sizeof(negative));
  }

  struct Decoder {
    explicit Decoder(float scale) : scalar(scale) {}
    template <class D, class V>
    HWY_INLINE hn::Vec<D> Values(D d, V codes) const {
      return hn::Xor(hn::Set(d, scalar.scale), hn::BitCast(d, hn::ShiftLeft<31>(codes)));
    }
    Sign1Format::Decoder scalar;
  };
};

// --- One block -----------------------------------------------------------------------------------

// The codes of 16 values, as bytes.
template <class Encoder>
HWY_INLINE Bytes16 CodesOf16(const Encoder& encoder, const float* x) {
  const auto codes = [&](size_t i) HWY_ATTR {
    const hn::Rebind<uint8_t, BitsTag> d;
    return hn::TruncateTo(d, encoder.Codes(hn::Load(FloatTag(), x + i)));
  };
  if constexpr (kLanes == 16) {
    return codes(0);
  } else if constexpr (kLanes == 8) {
    return hn::Combine(ByteTag(), codes(8), codes(0));
  } else {
    const hn::Half<ByteTag> d;
    return hn::Combine(ByteTag(), hn::Combine(d, codes(12), codes(8)),
                       hn::Combine(d, codes(4), codes(0)));
  }
}

template <class Format>
struct BlockVectors {
  static constexpr size_t kScaleBytes = sizeof(uint16_t);
  static constexpr size_t kCodeBytes = kCodecBlock * Format::kBits / 8;

  template <bool kFeedback>
  static HWY_INLINE bool Encode(const float* difference, int32_t largest, uint8_t* scale_bytes,
                                uint8_t* codes, float* residual) {
    if (largest > std::bit_cast<int32_t>(kLargestBlockMagnitude)) return false;
    const uint16_t scale_bits = Format::ScaleBits(difference, largest);
    if (scale_bits < kSmallestScaleBits) {
      std::memset(scale_bytes, 0, kScaleBytes);
      std::memset(codes, 0, kCodeBytes);
      if constexpr (kFeedback) std::copy_n(difference, kCodecBlock, residual);
      return true;
    }
    std::memcpy(scale_bytes, &scale_bits, sizeof(scale_bits));
    const float scale = Bf16ToFloat(scale_bits);
    if constexpr (requires { &Format::template EncodeBlock<kFeedback>; }) {
      Format::template EncodeBlock<kFeedback>(scale, difference, codes, residual);
    } else {
      EncodeByBytes<kFeedback>(scale, difference, codes, residual);
    }
    return true;
  }

  class Decoder {
   public:
    HWY_INLINE bool Load(const uint8_t* scale_bytes, const uint8_t* codes) {
      uint16_t scale_bits;
      std::memcpy(&scale_bits, scale_bytes, sizeof(scale_bits));
      LevelWriter writer{levels_, hn::Zero(LevelTag())};
      Unpack<Format::kBits>(codes, writer);
      if (!hn::AllFalse(LevelTag(), hn::Eq(writer.least, hn::Set(LevelTag(), kNoLevel)))) {
        return false;
      }
      if (scale_bits < kSmallestScaleBits || scale_bits > kLargestScaleBits) {
        if (scale_bits != 0 || !AllLevelsAreZero()) return false;
      }
      decoder_ = typename Format::Decoder(Bf16ToFloat(scale_bits));
      return true;
    }

    template <class D>
    HWY_INLINE hn::Vec<D> Values(D d, size_t i) const {
      return ValuesOfLevels(decoder_, d, levels_ + i);
    }

   private:
    bool AllLevelsAreZero() const {
      return std::all_of(levels_, levels_ + kCodecBlock, [](int8_t level) { return level == 0; });
    }

    HWY_ALIGN int8_t levels_[kCodecBlock];
    typename Format::Decoder decoder_{0.0F};
  };

 private:
  template <bool kFeedback>
  static HWY_INLINE void EncodeByBytes(float scale, const float* difference, uint8_t* codes,
                                       float* residual) {
    const typename Format::Encoder encoder(scale);
    HWY_ALIGN int8_t levels[kCodecBlock];
    for (size_t i = 0; i < kCodecBlock; i += 16) {
      const Bytes16 sixteen = CodesOf16(encoder, difference + i);
      Pack<Format::kBits>(sixteen, codes + i * Format::kBits / 8);
      if constexpr (kFeedback) hn::Store(Format::Levels(sixteen), LevelTag(), levels + i);
    }
    if constexpr (kFeedback) {
      const typename Format::Decoder decoder(scale);
      for (size_t i = 0; i < kCodecBlock; i += kLanes) {
        const auto decoded = ValuesOfLevels(decoder, FloatTag(), levels + i);
        hn::StoreU(hn::Sub(hn::Load(FloatTag(), difference + i), decoded), FloatTag(),
                   residual + i);
      }
    }
  }

  struct LevelWriter {
    HWY_INLINE void operator()(size_t i, Bytes16 codes) {
      const Levels16 sixteen = Format::Levels(codes);
      least = hn::Min(least, sixteen);
      hn::Store(sixteen, LevelTag(), levels + i);
    }
    int8_t* levels;
    Levels16 least;
  };

  template <class D>
  static HWY_INLINE hn::Vec<D> ValuesOfLevels(const typename Format::Decoder& decoder, D d,
                                              const int8_t* levels) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<int8_t, D> d8;
    return decoder.Values(d, hn::PromoteTo(di, hn::LoadU(d8, levels)));
  }
};

#endif  // A target with vectors.
}  // namespace causeway::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Per-target guard.
