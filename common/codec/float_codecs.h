// The codecs without scales. Each is one object that lives for ever; see codec.h.
#ifndef CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_
#define CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_

#include "common/codec/codec.h"

namespace causeway {

// FP32's refusal of a base or a target to encode.
absl::Status EndsNotFinite(size_t index, float base, float target);

const Codec* Fp32Codec(CodecPath path);
const Codec* Bf16Codec(CodecPath path);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_
