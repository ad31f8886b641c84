// bfloat16: the upper half of an fp32. Block scales and the BF16 codec are made of it.
#ifndef CAUSEWAY_COMMON_CODEC_BF16_H_
#define CAUSEWAY_COMMON_CODEC_BF16_H_

#include <bit>
#include <cstdint>

namespace causeway {

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

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CODEC_BF16_H_
