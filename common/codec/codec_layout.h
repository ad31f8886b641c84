// How values are cut for encoding: what codecs on every device have in common, with no more than
// the language's own types, so that device code can include it.
#ifndef CAUSEWAY_COMMON_CODEC_CODEC_LAYOUT_H_
#define CAUSEWAY_COMMON_CODEC_CODEC_LAYOUT_H_

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_CODEC_LAYOUT_H_
