// Floats as integers in the order of their values: what FP32 carries differences of.
#ifndef CAUSEWAY_COMMON_CODEC_ORDERED_FLOAT_H_
#define CAUSEWAY_COMMON_CODEC_ORDERED_FLOAT_H_

#include <bit>
#include <cstdint>

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_ORDERED_FLOAT_H_
