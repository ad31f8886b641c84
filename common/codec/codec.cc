#include "common/codec/codec.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/codec/block_formats.h"
#include "common/codec/difference_codec.h"

namespace causeway {
namespace {

template <typename Format, v1::Codec kId>
class BlockCodec final : public DifferenceCodec {
 public:
  explicit BlockCodec(CodecPath path)
      : DifferenceCodec(path, sizeof(uint16_t), Format::kBits, kLargestBlockMagnitude) {}

  v1::Codec id() const override { return kId; }
  absl::string_view name() const override { return Format::kName; }
  bool needs_error_feedback() const override { return Format::kNeedsErrorFeedback; }

 protected:
  void EncodeBlock(std::span<const float> values, std::span<uint8_t> scale_bytes,
                   std::span<uint8_t> codes, std::span<float> decoded) const override {
    const uint16_t scale_bits = Format::Scale(values);
    if (scale_bits < kSmallestScaleBits) {  // Too small to matter: all bytes stay zero.
      std::fill(decoded.begin(), decoded.end(), 0.0F);
      return;
    }
    scale_bytes[0] = static_cast<uint8_t>(scale_bits & 0xffU);
    scale_bytes[1] = static_cast<uint8_t>(scale_bits >> 8);
    const float scale = Bf16ToFloat(scale_bits);
    const typename Format::Encoder encoder(scale);
    const typename Format::Decoder decoder(scale);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint8_t code = encoder.Code(values[i]);
      codes[i / kPerByte] |= static_cast<uint8_t>(code << Shift(i));
      if (!decoded.empty()) decoded[i] = decoder.Value(code);
    }
  }

  absl::Status DecodeBlock(std::span<const uint8_t> scale_bytes, std::span<const uint8_t> codes,
                           std::span<float> decoded) const override {
    const auto scale_bits = static_cast<uint16_t>(scale_bytes[0] | (scale_bytes[1] << 8));
    if (scale_bits == 0) {
      if (std::any_of(codes.begin(), codes.end(), [](uint8_t byte) { return byte != 0; })) {
        return absl::InvalidArgumentError("codes under a scale of zero must be zero");
      }
      std::fill(decoded.begin(), decoded.end(), 0.0F);
      return absl::OkStatus();
    }
    if (scale_bits < kSmallestScaleBits || scale_bits > kLargestScaleBits) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the scale 0x%04x is not a bf16 from 2^-100 to 2^100", scale_bits));
    }
    const typename Format::Decoder decoder(Bf16ToFloat(scale_bits));
    for (size_t i = 0; i < decoded.size(); ++i) {
      const auto code = static_cast<uint8_t>((codes[i / kPerByte] >> Shift(i)) & kMask);
      if (!Format::IsCode(code)) {
        return absl::InvalidArgumentError(absl::StrFormat("0x%x is not a code", code));
      }
      decoded[i] = decoder.Value(code);
    }
    const size_t used = decoded.size() % kPerByte;
    if (used != 0 && (codes.back() >> (used * Format::kBits)) != 0) {
      return absl::InvalidArgumentError("the unused bits of the last byte must be zero");
    }
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kPerByte = 8 / Format::kBits;
  static constexpr unsigned kMask = (1U << Format::kBits) - 1U;
  // Low bits first.
  static constexpr size_t Shift(size_t i) { return i % kPerByte * Format::kBits; }
};

template <typename Format, v1::Codec kId>
const Codec* TheCodec(CodecPath path) {
  static const BlockCodec<Format, kId> vector(CodecPath::kVector);
  static const BlockCodec<Format, kId> scalar(CodecPath::kScalar);
  return path == CodecPath::kVector ? &vector : &scalar;
}

}  // namespace

absl::Status Codec::WeightedSum(std::span<const WeightedPart> parts, std::span<const float> base,
                                std::span<const float* const> /*upcoming*/,
                                std::span<double> sum) const {
  std::fill(sum.begin(), sum.end(), 0.0);
  for (const WeightedPart& part : parts) {
    RETURN_IF_ERROR(Accumulate(part.encoded, base, part.weight, sum));
  }
  return absl::OkStatus();
}

absl::Status Codec::Validate(std::span<const uint8_t> encoded, std::span<const float> base) const {
  std::vector<float> values(base.begin(), base.end());
  return Apply(encoded, values);
}

absl::StatusOr<double> Codec::SumOfSquares(std::span<const uint8_t> encoded,
                                           std::span<const float> base) const {
  std::array<double, kSquareSums> s = {};
  RETURN_IF_ERROR(AddSquares(encoded, base, s));
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

absl::StatusOr<const Codec*> FindCodec(v1::Codec id, CodecPath path) {
  const std::array<const Codec*, kCodecs.size()> codecs = {Fp32Codec(path),
                                                           Bf16Codec(path),
                                                           TheCodec<Int8Format, v1::INT8>(path),
                                                           TheCodec<E3m0Format, v1::E3M0>(path),
                                                           TheCodec<E2m1Format, v1::E2M1>(path),
                                                           TheCodec<Int4Format, v1::INT4>(path),
                                                           TheCodec<Lm2Format, v1::LM2>(path),
                                                           TheCodec<Sign1Format, v1::SIGN1>(path)};
  std::string known;
  for (const Codec* codec : codecs) {
    if (codec->id() == id) return codec;
    absl::StrAppend(&known, known.empty() ? "" : ", ", v1::Codec_Name(codec->id()));
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no codec ", static_cast<int>(id), " (",
                                                 v1::Codec_Name(id), "); there are ", known));
}

namespace {

constexpr int kLevel = 1;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

}  // namespace

bool EntropyPack(std::span<const uint8_t> plain, std::string& packed) {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  packed.resize(plain.size() - plain.size() * 3 / 100);
  if (context == nullptr || packed.empty()) return false;
  const size_t size = ZSTD_compressCCtx(context.get(), packed.data(), packed.size(), plain.data(),
                                        plain.size(), kLevel);
  if (ZSTD_isError(size) != 0) return false;  // It does not fit, as a rule.
  packed.resize(size);
  return true;
}

absl::Status EntropyUnpack(absl::string_view packed, std::span<uint8_t> plain) {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (context == nullptr) return absl::ResourceExhaustedError("no memory to unpack with");
  const size_t size =
      ZSTD_decompressDCtx(context.get(), plain.data(), plain.size(), packed.data(), packed.size());
  if (ZSTD_isError(size) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("bytes that should unpack to ", plain.size(),
                                                   " do not: ", ZSTD_getErrorName(size)));
  }
  if (size != plain.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes that should unpack to ", plain.size(), " unpack to ", size));
  }
  return absl::OkStatus();
}

}  // namespace causeway
