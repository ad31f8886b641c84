#include "common/codec/codec.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/block_codecs.h"
#include "common/codec/float_codecs.h"

namespace causeway {

absl::Status Codec::WeightedSum(std::span<const WeightedPart> parts, std::span<const float> base,
                                std::span<const float* const> /*upcoming*/,
                                std::span<double> sum) const {
  std::fill(sum.begin(), sum.end(), 0.0);
  for (const WeightedPart& part : parts) {
    RETURN_IF_ERROR(Accumulate(part.encoded, base, part.weight, sum));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Codec::SumOfSquares(std::span<const uint8_t> encoded,
                                           std::span<const float> base) const {
  std::array<double, kSquareSums> s = {};
  RETURN_IF_ERROR(AddSquares(encoded, base, s));
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

absl::StatusOr<const Codec*> FindCodec(v1::Codec id, CodecPath path) {
  const std::array<const Codec*, kCodecs.size()> codecs = {
      Fp32Codec(path), Bf16Codec(path), Int8Codec(path), E3m0Codec(path),
      E2m1Codec(path), Int4Codec(path), Lm2Codec(path),  Sign1Codec(path)};
  std::string known;
  for (const Codec* codec : codecs) {
    if (codec->id() == id) return codec;
    absl::StrAppend(&known, known.empty() ? "" : ", ", v1::Codec_Name(codec->id()));
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no codec ", static_cast<int>(id), " (",
                                                 v1::Codec_Name(id), "); there are ", known));
}

}  // namespace causeway
