#include "server/outer/delta_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::server {

absl::StatusOr<double> DeltaNorm(const Codec& codec, std::span<const uint8_t> encoded,
                                 std::span<const float> base, bool against_zeros) {
  static constexpr std::array<float, kCodecChunk> kZeros = {};
  if (encoded.size() != codec.EncodedBytes(base.size())) {
    return absl::InvalidArgumentError(absl::StrCat(base.size(), " values take ",
                                                   codec.EncodedBytes(base.size()),
                                                   " bytes, there are ", encoded.size()));
  }
  std::array<double, kCodecChunk> chunk;
  double sum_of_squares = 0;
  for (size_t begin = 0; begin < base.size(); begin += kCodecChunk) {
    const size_t size = std::min(kCodecChunk, base.size() - begin);
    const std::span<double> delta = std::span(chunk).first(size);
    std::ranges::fill(delta, 0.0);
    RETURN_IF_ERROR(
        codec.Accumulate(encoded.subspan(codec.EncodedBytes(begin), codec.EncodedBytes(size)),
                         against_zeros ? std::span(kZeros).first(size)
                                       : std::span<const float>(base.subspan(begin, size)),
                         1.0, delta));
    // Four sums that do not wait for each other.
    std::array<double, 4> parts = {};
    for (size_t i = 0; i < size; ++i) parts[i % 4] += delta[i] * delta[i];
    sum_of_squares += (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }
  return std::sqrt(sum_of_squares);
}

}  // namespace causeway::server
