// The codecs without scales. Each is one object that lives for ever; see codec.h.
#ifndef CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_
#define CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_

#include <bit>
#include <cstdint>

#include "common/codec/codec.h"

namespace causeway {

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

// BF16 carries differences up to this magnitude, as bits; the next one would round to infinity.
inline constexpr int32_t kLargestBf16CodecBits = 0x7f7f7fff;

const Codec* Fp32Codec(CodecPath path);
const Codec* Bf16Codec(CodecPath path);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_FLOAT_CODECS_H_
