// The codecs, each one object that lives for ever; see codec.h.
#ifndef CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_
#define CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_

#include "common/codec/codec.h"

namespace causeway {

// FP32's refusal of a base or a target to encode.
absl::Status EndsNotFinite(size_t index, float base, float target);

const Codec* Fp32Codec(CodecPath path);
const Codec* Bf16Codec(CodecPath path);

const Codec* Int8Codec(CodecPath path);
const Codec* E3m0Codec(CodecPath path);
const Codec* E2m1Codec(CodecPath path);
const Codec* Int4Codec(CodecPath path);
const Codec* Lm2Codec(CodecPath path);
const Codec* Sign1Codec(CodecPath path);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_
