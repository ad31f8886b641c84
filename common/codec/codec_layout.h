// How values are cut for encoding: what codecs on every device have in common, with no more than
// the language's own types, so that device code can include it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace causeway {

inline constexpr size_t kCodecChunk = 4096;  // Values.
inline constexpr size_t kCodecBlock = 64;    // Values.
// A sum of squares is made in so many sums (Codec::SumOfSquares).
inline constexpr size_t kSquareSums = 8;

// Magnitudes above are refused by all codecs with scales.
inline constexpr float kLargestBlockMagnitude = 0x1p100F;
// bf16 bits of the limits of a scale that is not 0.
inline constexpr uint16_t kSmallestScaleBits = 0x0d80;  // 2^-100
inline constexpr uint16_t kLargestScaleBits = 0x7180;   // 2^100

// BF16 carries differences up to this magnitude, as bits; the next one would round to infinity.
inline constexpr int32_t kLargestBf16CodecBits = 0x7f7f7fff;

// bfloat16: the upper half of an fp32. Block scales and the BF16 codec are made of it.

constexpr float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To nearest, ties to even. `x` is not a NaN; from 0x1.ffp127 on the result is infinite.
constexpr uint16_t Bf16Nearest(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// The smallest bf16 that is not below `magnitude`, which is finite and not negative.
constexpr uint16_t Bf16RoundedUp(float magnitude) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(magnitude) + 0xffffU) >> 16);
}

// fp32 bit patterns as integers in the order of their values: a bijection in which the same bit
// operation leads both ways. +0 is 0, -0 is -1, and neighbouring floats are neighbouring
// integers, so a difference counts units in the last place.
constexpr int32_t OrderedFromFloat(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
constexpr float FloatFromOrdered(int32_t ordered) {
  return std::bit_cast<float>(ordered ^ ((ordered >> 31) & 0x7fffffff));
}

}  // namespace causeway
