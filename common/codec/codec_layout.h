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

// Values that TOPK2 sends of a chunk, at most: one per block. They need not lie in different
// blocks.
inline constexpr size_t kTopK = kCodecChunk / kCodecBlock;
// The bits of 2^-100 and 2^100: smaller differences are never selected, larger ones are refused.
inline constexpr int32_t kTopKSmallestBits = 0x0d800000;
inline constexpr int32_t kTopKLargestBits = 0x71800000;
// Steps of Lloyd's iteration from the mean on. Four come near the best two levels, whatever the
// distribution; fixed ones would have to know it (docs/reports/codecs.md).
inline constexpr int kTopKSteps = 4;
// An entry of TOPK2: the place in the block, and the code above it.
inline constexpr unsigned kTopKPlaceBits = 6;
inline constexpr unsigned kTopKPlaceMask = (1U << kTopKPlaceBits) - 1U;
inline constexpr unsigned kTopKLarge = 1;
inline constexpr unsigned kTopKNegative = 2;

// Where the parts of a chunk's bytes are in TOPK2.
struct TopKChunkLayout {
  explicit constexpr TopKChunkLayout(size_t values)
      : blocks((values + kCodecBlock - 1) / kCodecBlock),
        places_offset(2 * sizeof(uint16_t)),
        entries_offset(places_offset + (2 * blocks + 7) / 8),
        bytes(values == 0 ? 0 : entries_offset + blocks) {}

  size_t blocks;  // And the most values that are sent.
  size_t places_offset;
  size_t entries_offset;
  size_t bytes;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_CODEC_LAYOUT_H_
