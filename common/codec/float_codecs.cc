#include "common/codec/float_codecs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/codec/bf16.h"
#include "common/codec/difference_codec.h"

namespace causeway {
namespace {

// FP32: the distance of target and base in units of the last place, little endian.
class Fp32 final : public Codec {
 public:
  v1::Codec id() const override { return v1::FP32; }
  absl::string_view name() const override { return "fp32"; }
  size_t EncodedBytes(size_t values) const override { return values * sizeof(uint32_t); }

  absl::Status Encode(std::span<const float> base, std::span<const float> target,
                      std::span<float> residual, std::span<uint8_t> out) const override {
    if (target.size() != base.size() || (!residual.empty() && residual.size() != base.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("base, target and residual must be equally long, not %d, %d and %d",
                          base.size(), target.size(), residual.size()));
    }
    RETURN_IF_ERROR(CheckEncodedSize(*this, out.size(), base.size()));
    for (size_t i = 0; i < base.size(); ++i) {
      const float wanted = residual.empty() ? target[i] : target[i] - residual[i];
      if (!AreFinite(base[i], wanted)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "value %d: base %g and target %g must be finite; has the training diverged?", i,
            base[i], wanted));
      }
      const uint32_t distance = static_cast<uint32_t>(OrderedFromFloat(wanted)) -
                                static_cast<uint32_t>(OrderedFromFloat(base[i]));
      std::memcpy(out.data() + i * sizeof(distance), &distance, sizeof(distance));
    }
    std::fill(residual.begin(), residual.end(), 0.0F);
    return absl::OkStatus();
  }

  absl::Status Accumulate(std::span<const uint8_t> encoded, std::span<const float> base,
                          double weight, std::span<double> sum) const override {
    if (sum.size() != base.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "base and sum must be equally long, not %d and %d", base.size(), sum.size()));
    }
    RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), base.size()));
    for (size_t i = 0; i < base.size(); ++i) {
      const float target = Target(encoded, base[i], i);
      if (!AreFinite(base[i], target)) return NotFinite(i, base[i], target);
      sum[i] += weight * (static_cast<double>(base[i]) - static_cast<double>(target));
    }
    return absl::OkStatus();
  }

  absl::Status Apply(std::span<const uint8_t> encoded, std::span<float> values) const override {
    RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float target = Target(encoded, values[i], i);
      if (!AreFinite(values[i], target)) return NotFinite(i, values[i], target);
      values[i] = target;
    }
    return absl::OkStatus();
  }

  absl::Status Validate(std::span<const uint8_t> encoded,
                        std::span<const float> base) const override {
    RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), base.size()));
    for (size_t i = 0; i < base.size(); ++i) {
      const float target = Target(encoded, base[i], i);
      if (!AreFinite(base[i], target)) return NotFinite(i, base[i], target);
    }
    return absl::OkStatus();
  }

 private:
  static float Target(std::span<const uint8_t> encoded, float base, size_t i) {
    uint32_t distance = 0;
    std::memcpy(&distance, encoded.data() + i * sizeof(distance), sizeof(distance));
    return FloatFromOrdered(
        static_cast<int32_t>(static_cast<uint32_t>(OrderedFromFloat(base)) + distance));
  }

  static bool AreFinite(float base, float target) {
    return std::isfinite(base) && std::isfinite(target);
  }

  static absl::Status NotFinite(size_t index, float base, float target) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "value %d: the decoded target is %g (base %g); it was encoded against another base, or is "
        "damaged",
        index, target, base));
  }
};

// BF16: the difference rounded to nearest even, 2 bytes, little endian.
class Bf16 final : public DifferenceCodec {
 public:
  // From the limit on, rounding would give infinity.
  Bf16() : DifferenceCodec(0, 16, std::bit_cast<float>(0x7f7f7fffU)) {}

  v1::Codec id() const override { return v1::BF16; }
  absl::string_view name() const override { return "bf16"; }

 protected:
  void EncodeBlock(std::span<const float> values, std::span<uint8_t> /*scale*/,
                   std::span<uint8_t> codes, std::span<float> decoded) const override {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = Bf16Nearest(values[i]);
      std::memcpy(codes.data() + i * sizeof(bits), &bits, sizeof(bits));
      if (!decoded.empty()) decoded[i] = Bf16ToFloat(bits);
    }
  }

  absl::Status DecodeBlock(std::span<const uint8_t> /*scale*/, std::span<const uint8_t> codes,
                           std::span<float> decoded) const override {
    for (size_t i = 0; i < decoded.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, codes.data() + i * sizeof(bits), sizeof(bits));
      decoded[i] = Bf16ToFloat(bits);
      if (!std::isfinite(decoded[i])) {
        return absl::InvalidArgumentError(
            absl::StrFormat("0x%04x is not a finite bf16", static_cast<unsigned>(bits)));
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

const Codec* Fp32Codec() {
  static const Fp32 codec;
  return &codec;
}

const Codec* Bf16Codec() {
  static const Bf16 codec;
  return &codec;
}

}  // namespace causeway
