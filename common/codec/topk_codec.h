// TOPK2: of every chunk only the largest 1/64 of the differences, each as a sign and one of two
// magnitudes; after SparseLoCo (arXiv 2508.15706). What is left out waits in the residual, so error
// feedback is required. docs/codecs.md has the bytes.
//
// Selecting is done by vectors or by plain code (CodecPath); both give the same values, and all
// that follows is the same code, which touches no more than the values selected.
#ifndef CAUSEWAY_COMMON_CODEC_TOPK_CODEC_H_
#define CAUSEWAY_COMMON_CODEC_TOPK_CODEC_H_

#include "common/codec/codec.h"

namespace causeway {

// Lives for ever; see codec.h.
const Codec* TopK2Codec(CodecPath path);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_TOPK_CODEC_H_
