// Turns one block of values into a scale and a code per value. The walk over chunks and blocks is
// difference_codec.h's; docs/codecs.md has the bytes.
//
// Every operation below is a single fp32 operation rounded to nearest, in the order written, so
// that SIMD and GPU versions can give the same bits: multiplications and comparisons per value,
// one division per block. A scale is 0 or lies in [2^-100, 2^100]; with that no product here is
// subnormal or infinite, and flush-to-zero modes change nothing.
//
// Constexpr members serve device code, too.
//
// A format has:
//   kName, kBits (of a code), kNeedsErrorFeedback
//   Scale(values)               bf16 bits, before the lower limit is applied
//   Encoder(scale).Code(x)      the code of x, in the low kBits; scale > 0
//   IsCode(code)                whether an encoder makes it
//   Decoder(scale).Value(code)  the value of a code that is one
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/codec/codec_layout.h"

namespace causeway {

// The largest magnitude rounded up, so that |x| / scale <= 1.
inline uint16_t LargestMagnitudeScale(std::span<const float> values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return Bf16RoundedUp(largest);
}

// To the nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
constexpr float RoundHalfEven(float x) {
  constexpr float kShift = 0x1.8p23F;
  return (x + kShift) - kShift;
}

// Two's complement integers -kLimit .. kLimit, evenly spaced.
template <int kLimitValue, int kBitsValue>
struct LinearFormat {
  static constexpr int kBits = kBitsValue;
  static constexpr int kLimit = kLimitValue;
  static constexpr bool kNeedsErrorFeedback = false;
  static constexpr uint8_t kMask = (1U << kBits) - 1U;

  static uint16_t Scale(std::span<const float> values) { return LargestMagnitudeScale(values); }

  struct Encoder {
    explicit constexpr Encoder(float scale) : inverse(static_cast<float>(kLimit) / scale) {}
    // |x * inverse| is at most kLimit (1 + 2^-23), which rounds to kLimit: no clamp is needed.
    constexpr uint8_t Code(float x) const {
      return static_cast<uint8_t>(static_cast<int>(RoundHalfEven(x * inverse))) & kMask;
    }
    float inverse;
  };

  // All but the most negative integer.
  static constexpr bool IsCode(uint8_t code) { return code != (1U << (kBits - 1)); }

  struct Decoder {
    explicit constexpr Decoder(float scale) : step(scale * kReciprocal) {}
    constexpr float Value(uint8_t code) const {
      constexpr int kUnused = 8 - kBits;
      const int integer = static_cast<int8_t>(code << kUnused) >> kUnused;
      return static_cast<float>(integer) * step;
    }
    float step;
  };

  // 1 / kLimit rounded toward zero: kLimit * step then never exceeds the scale, so a decoded
  // block has the same scale again.
  static constexpr float kReciprocal = kLimit == 7 ? 0x1.249248p-3F : 0x1.020408p-7F;
};

struct Int8Format : LinearFormat<127, 8> {
  static constexpr char kName[] = "int8";
};

struct Int4Format : LinearFormat<7, 4> {
  static constexpr char kName[] = "int4";
};

// Sign (bit 3) and level (bits 2..0) of the two 4-bit floating-point formats. Minus zero is not
// a code.
struct SignAndLevelFormat {
  static constexpr int kBits = 4;
  static constexpr bool kNeedsErrorFeedback = false;
  static uint16_t Scale(std::span<const float> values) { return LargestMagnitudeScale(values); }
  static constexpr uint8_t WithSign(int level, float x) {
    return static_cast<uint8_t>(level | (level != 0 && x < 0 ? 8 : 0));
  }
  static constexpr bool IsCode(uint8_t code) { return code != 8; }
  static constexpr float Signed(uint8_t code, float magnitude) {
    return (code & 8U) != 0 ? -magnitude : magnitude;
  }
};

// 0 and 2^-6 .. 2^0 times the scale: the FP4 of arXiv 2501.18512.
struct E3m0Format : SignAndLevelFormat {
  static constexpr char kName[] = "e3m0";

  // Midpoints of neighbouring levels on the linear scale, times the scale (exact products). Half
  // of them belong to the level above: the one with the even code.
  struct Encoder {
    explicit constexpr Encoder(float scale) : unit(scale * 0x1p-7F) {}
    constexpr uint8_t Code(float x) const {
      const float a = std::abs(x);
      const int level = (a > unit) + (a >= 3 * unit) + (a > 6 * unit) + (a >= 12 * unit) +
                        (a > 24 * unit) + (a >= 48 * unit) + (a > 96 * unit);
      return WithSign(level, x);
    }
    float unit;
  };

  struct Decoder {
    explicit constexpr Decoder(float block_scale) : scale(block_scale) {}
    constexpr float Value(uint8_t code) const {
      constexpr uint32_t kBelowFirst = 120;  // The exponent of 2^-7, as a float has it.
      const uint32_t level = code & 7U;
      const uint32_t power = level == 0 ? 0 : (kBelowFirst + level) << 23;
      return Signed(code, scale * std::bit_cast<float>(power));
    }
    float scale;
  };
};

// 0, .5, 1, 1.5, 2, 3, 4, 6, the largest being the scale: the element type of OCP MX FP4.
struct E2m1Format : SignAndLevelFormat {
  static constexpr char kName[] = "e2m1";

  struct Encoder {
    explicit constexpr Encoder(float scale) : inverse(6.0F / scale) {}
    constexpr uint8_t Code(float x) const {
      const float a = std::abs(x) * inverse;
      const int level = (a > 0.25F) + (a >= 0.75F) + (a > 1.25F) + (a >= 1.75F) + (a > 2.5F) +
                        (a >= 3.5F) + (a > 5.0F);
      return WithSign(level, x);
    }
    float inverse;
  };

  struct Decoder {
    // 1 / 6 rounded toward zero, for the reason given at LinearFormat.
    explicit constexpr Decoder(float scale) : step(scale * 0x1.555554p-3F) {}
    constexpr float Value(uint8_t code) const {
      constexpr uint32_t kTwiceTheLevels = 0xc8643210;  // A nibble each, from level 0 on.
      const uint32_t twice = (kTwiceTheLevels >> (4 * (code & 7U))) & 15U;
      return Signed(code, step * (0.5F * static_cast<float>(twice)));
    }
    float step;
  };
};

// Partial sums behind a scale that is a mean.
inline constexpr size_t kMeanSums = 8;

// A scale that is the mean of Format::Term(x), or with Format::kIsRoot its root, to nearest even.
// Terms are exact in double. Value i of the block counts in sum i mod kMeanSums, each in order of
// index, so that vectors can add as many at once. Such formats have no zero, hence error feedback.
template <class Format>
struct MeanScale {
  static constexpr bool kNeedsErrorFeedback = true;

  static uint16_t Scale(std::span<const float> values) {
    std::array<double, kMeanSums> sums = {};
    for (size_t i = 0; i < values.size(); ++i) sums[i % kMeanSums] += Format::Term(values[i]);
    const auto& s = sums;
    return ScaleOfSum(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])),
                      values.size());
  }

  static uint16_t ScaleOfSum(double sum, size_t values) {
    const double mean = sum / static_cast<double>(values);
    return Bf16Nearest(static_cast<float>(Format::kIsRoot ? std::sqrt(mean) : mean));
  }

  static constexpr bool IsCode(uint8_t) { return true; }
};

// The four Lloyd-Max levels of a Gaussian whose standard deviation is the scale. Bit 0: the large
// level; bit 1: negative.
struct Lm2Format : MeanScale<Lm2Format> {
  static constexpr char kName[] = "lm2";
  static constexpr int kBits = 2;
  static constexpr bool kIsRoot = true;
  static constexpr double Term(float x) { return static_cast<double>(x) * static_cast<double>(x); }

  struct Encoder {
    explicit constexpr Encoder(float scale) : threshold(0.9816F * scale) {}
    constexpr uint8_t Code(float x) const {
      return static_cast<uint8_t>((std::abs(x) > threshold ? 1 : 0) | (x < 0 ? 2 : 0));
    }
    float threshold;
  };

  struct Decoder {
    explicit constexpr Decoder(float scale) : small(0.4528F * scale), large(1.510F * scale) {}
    constexpr float Value(uint8_t code) const {
      const float magnitude = (code & 1U) != 0 ? large : small;
      return (code & 2U) != 0 ? -magnitude : magnitude;
    }
    float small, large;
  };
};

// The sign, 1 for negative, times the mean magnitude: EF-signSGD (arXiv 1901.09847).
struct Sign1Format : MeanScale<Sign1Format> {
  static constexpr char kName[] = "sign1";
  static constexpr int kBits = 1;
  static constexpr bool kIsRoot = false;
  static constexpr double Term(float x) { return static_cast<double>(std::abs(x)); }

  struct Encoder {
    explicit constexpr Encoder(float) {}
    constexpr uint8_t Code(float x) const { return x < 0 ? 1 : 0; }
  };

  struct Decoder {
    explicit constexpr Decoder(float block_scale) : scale(block_scale) {}
    constexpr float Value(uint8_t code) const { return code != 0 ? -scale : scale; }
    float scale;
  };
};

}  // namespace causeway
