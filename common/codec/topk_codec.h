// TOPK2: of every chunk only the largest 1/64 of the differences, each as a sign and one of two
// magnitudes; after SparseLoCo (arXiv 2508.15706). What is left out waits in the residual, so error
// feedback is required. docs/codecs.md has the bytes.
//
// Selecting is done by vectors or by plain code (CodecPath); both give the same values, and all
// that follows is the same code, which touches no more than the values selected.
#ifndef CAUSEWAY_COMMON_CODEC_TOPK_CODEC_H_
#define CAUSEWAY_COMMON_CODEC_TOPK_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"

namespace causeway {

// Values sent of a chunk, at most: one per block. They need not lie in different blocks.
inline constexpr size_t kTopK = kCodecChunk / kCodecBlock;

// The bits of 2^-100 and 2^100: smaller differences are never selected, larger ones are refused.
inline constexpr int32_t kTopKSmallestBits = 0x0d800000;
inline constexpr int32_t kTopKLargestBits = 0x71800000;

// Lives for ever; see codec.h.
const Codec* TopK2Codec(CodecPath path);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_TOPK_CODEC_H_
