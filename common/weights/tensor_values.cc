#include "common/weights/tensor_values.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "common/codec/bf16.h"

namespace causeway {
namespace {

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {  // Zero, or below the normal range.
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign == 0 ? magnitude : -magnitude;
  }
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace

float TensorValues::At(int64_t index) const {
  if (wide_) {
    float value = 0;
    std::memcpy(&value, bytes_ + index * 4, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes_ + index * 2, sizeof(bits));
  return half_ ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

}  // namespace causeway
