#include "common/codec/difference_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/codec/codec_kernels.h"
#include "common/codec/codec_layout.h"

namespace causeway {
namespace {

// FP32: the distance of target and base in units of the last place, little endian.
class Fp32 final : public Codec {
 public:
  explicit Fp32(CodecPath path) : path_(path) {}

  v1::Codec id() const override { return v1::FP32; }
  absl::string_view name() const override { return "fp32"; }
  size_t EncodedBytes(size_t values) const override { return values * sizeof(uint32_t); }

  absl::Status Encode(std::span<const float> base, std::span<const float> target,
                      const ErrorFeedback& feedback, std::span<uint8_t> out) const override {
    const std::span<float> residual = feedback.residual;
    RETURN_IF_ERROR(
        CheckEncodeSizes(*this, base.size(), target.size(), residual.size(), out.size()));
    const CodecKernels* const kernels = Kernels();
    const size_t done =
        kernels == nullptr
            ? 0
            : kCodecBlock * kernels->encode(base.data(), target.data(),
                                            residual.empty() ? nullptr : residual.data(),
                                            feedback.decay, base.size() / kCodecBlock, nullptr,
                                            out.data());
    for (size_t i = done; i < base.size(); ++i) {
      const float wanted = residual.empty() ? target[i] : target[i] - feedback.decay * residual[i];
      if (!AreFinite(base[i], wanted)) {
        return EndsNotFinite(i, base[i], wanted);
      }
      const uint32_t distance = static_cast<uint32_t>(OrderedFromFloat(wanted)) -
                                static_cast<uint32_t>(OrderedFromFloat(base[i]));
      std::memcpy(out.data() + i * sizeof(distance), &distance, sizeof(distance));
    }
    if (!residual.empty()) {
      std::fill(residual.begin() + static_cast<ptrdiff_t>(done), residual.end(), 0.0F);
    }
    return absl::OkStatus();
  }

  absl::Status Accumulate(std::span<const uint8_t> encoded, std::span<const float> base,
                          double weight, std::span<double> sum) const override {
    if (sum.size() != base.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "base and sum must be equally long, not %d and %d", base.size(), sum.size()));
    }
    RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), base.size()));
    const CodecKernels* const kernels = Kernels();
    const size_t done =
        kernels == nullptr
            ? 0
            : kCodecBlock * kernels->accumulate(nullptr, encoded.data(), base.data(), weight,
                                                base.size() / kCodecBlock, sum.data());
    for (size_t i = done; i < base.size(); ++i) {
      const float target = Target(encoded, base[i], i);
      if (!AreFinite(base[i], target)) return NotFinite(i, base[i], target);
      sum[i] += weight * (static_cast<double>(base[i]) - static_cast<double>(target));
    }
    return absl::OkStatus();
  }

  absl::Status Apply(std::span<const uint8_t> encoded, std::span<float> values) const override {
    RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), values.size()));
    const CodecKernels* const kernels = Kernels();
    const size_t done =
        kernels == nullptr
            ? 0
            : kCodecBlock * kernels->apply(nullptr, encoded.data(), values.size() / kCodecBlock,
                                           values.data());
    for (size_t i = done; i < values.size(); ++i) {
      const float target = Target(encoded, values[i], i);
      if (!AreFinite(values[i], target)) return NotFinite(i, values[i], target);
      values[i] = target;
    }
    return absl::OkStatus();
  }

 protected:
  absl::Status AddSquares(std::span<const uint8_t> encoded, std::span<const float> base,
                          std::span<double, kSquareSums> sums) const override {
    RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), base.size()));
    const CodecKernels* const kernels = Kernels();
    const size_t done =
        kernels == nullptr ? 0
                           : kCodecBlock * kernels->squares(nullptr, encoded.data(), base.data(),
                                                            base.size() / kCodecBlock, sums.data());
    for (size_t i = done; i < base.size(); ++i) {
      const float target = Target(encoded, base[i], i);
      if (!AreFinite(base[i], target)) return NotFinite(i, base[i], target);
      const double delta = static_cast<double>(base[i]) - static_cast<double>(target);
      sums[i % kSquareSums] += delta * delta;
    }
    return absl::OkStatus();
  }

 private:
  // Null where the scalar code does it all.
  const CodecKernels* Kernels() const {
    return path_ == CodecPath::kVector ? FindCodecKernels(id()) : nullptr;
  }

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

  CodecPath path_;
};

// BF16: the difference rounded to nearest even, 2 bytes, little endian.
class Bf16 final : public DifferenceCodec {
 public:
  explicit Bf16(CodecPath path)
      : DifferenceCodec(path, 0, 16, std::bit_cast<float>(kLargestBf16CodecBits)) {}

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

absl::Status EndsNotFinite(size_t index, float base, float target) {
  return absl::InvalidArgumentError(
      absl::StrFormat("value %d: base %g and target %g must be finite; has the training diverged?",
                      index, base, target));
}

const Codec* Fp32Codec(CodecPath path) {
  static const Fp32 vector(CodecPath::kVector);
  static const Fp32 scalar(CodecPath::kScalar);
  return path == CodecPath::kVector ? &vector : &scalar;
}

const Codec* Bf16Codec(CodecPath path) {
  static const Bf16 vector(CodecPath::kVector);
  static const Bf16 scalar(CodecPath::kScalar);
  return path == CodecPath::kVector ? &vector : &scalar;
}

}  // namespace causeway
