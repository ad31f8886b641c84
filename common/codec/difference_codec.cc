#include "common/codec/difference_codec.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

// Where one block's bytes are.
struct BlockPlace {
  size_t first;   // Index of the block's first value.
  size_t values;  // 1..kCodecBlock.
  size_t scale_offset;
  size_t codes_offset;
  size_t codes_bytes;
};

constexpr size_t CeilDivide(size_t a, size_t b) { return a / b + (a % b != 0 ? 1 : 0); }

constexpr size_t ChunkBytes(size_t values, size_t scale_bytes, size_t code_bits) {
  return CeilDivide(values, kCodecBlock) * scale_bytes + CeilDivide(values * code_bits, 8);
}

// Calls `visit` for every block in order, until it returns an error.
template <typename Visit>
absl::Status ForEachBlock(size_t values, size_t scale_bytes, size_t code_bits, Visit visit) {
  size_t chunk_offset = 0;
  for (size_t chunk = 0; chunk < values; chunk += kCodecChunk) {
    const size_t chunk_values = std::min(kCodecChunk, values - chunk);
    const size_t codes_begin = chunk_offset + CeilDivide(chunk_values, kCodecBlock) * scale_bytes;
    for (size_t i = 0; i < chunk_values; i += kCodecBlock) {
      const size_t block_values = std::min(kCodecBlock, chunk_values - i);
      RETURN_IF_ERROR(visit(BlockPlace{
          .first = chunk + i,
          .values = block_values,
          .scale_offset = chunk_offset + i / kCodecBlock * scale_bytes,
          .codes_offset = codes_begin + i * code_bits / 8,
          .codes_bytes = CeilDivide(block_values * code_bits, 8),
      }));
    }
    chunk_offset += ChunkBytes(chunk_values, scale_bytes, code_bits);
  }
  return absl::OkStatus();
}

absl::Status NotFiniteAfterwards(size_t index, float base, float delta) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "value %d: the decoded difference %g takes %g beyond fp32", index, delta, base));
}

}  // namespace

absl::Status CheckEncodedSize(const Codec& codec, size_t bytes, size_t values) {
  if (bytes == codec.EncodedBytes(values)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%d values in %s take %d bytes, not %d", values,
                                                    codec.name(), codec.EncodedBytes(values),
                                                    bytes));
}

size_t DifferenceCodec::EncodedBytes(size_t values) const {
  return values / kCodecChunk * ChunkBytes(kCodecChunk, scale_bytes_, code_bits_) +
         ChunkBytes(values % kCodecChunk, scale_bytes_, code_bits_);
}

absl::Status DifferenceCodec::Encode(std::span<const float> base, std::span<const float> target,
                                     std::span<float> residual, std::span<uint8_t> out) const {
  const size_t values = base.size();
  if (target.size() != values || (!residual.empty() && residual.size() != values)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("base, target and residual must be equally long, not %d, %d and %d", values,
                        target.size(), residual.size()));
  }
  RETURN_IF_ERROR(CheckEncodedSize(*this, out.size(), values));
  std::fill(out.begin(), out.end(), uint8_t{0});
  return ForEachBlock(values, scale_bytes_, code_bits_, [&](const BlockPlace& place) {
    std::array<float, kCodecBlock> difference_store;
    std::array<float, kCodecBlock> decoded_store;
    const auto difference = std::span(difference_store).first(place.values);
    const auto decoded = std::span(decoded_store).first(residual.empty() ? 0 : place.values);
    for (size_t i = 0; i < place.values; ++i) {
      const size_t index = place.first + i;
      difference[i] = base[index] - target[index];
      if (!residual.empty()) difference[i] += residual[index];
      // NaNs and infinities fail this, too.
      if (!(std::abs(difference[i]) <= largest_magnitude_)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "value %d: the difference is %g (base %g, target %g), and %s carries magnitudes up to "
            "%g; has the training diverged?",
            index, difference[i], base[index], target[index], name(), largest_magnitude_));
      }
    }
    EncodeBlock(difference, out.subspan(place.scale_offset, scale_bytes_),
                out.subspan(place.codes_offset, place.codes_bytes), decoded);
    for (size_t i = 0; i < decoded.size(); ++i) {
      residual[place.first + i] = difference[i] - decoded[i];
    }
    return absl::OkStatus();
  });
}

absl::Status DifferenceCodec::VisitBlocks(std::span<const uint8_t> encoded, size_t values,
                                          BlockVisitor visit) const {
  RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), values));
  return ForEachBlock(values, scale_bytes_, code_bits_, [&](const BlockPlace& place) {
    std::array<float, kCodecBlock> decoded_store;
    const auto decoded = std::span(decoded_store).first(place.values);
    const absl::Status status =
        DecodeBlock(encoded.subspan(place.scale_offset, scale_bytes_),
                    encoded.subspan(place.codes_offset, place.codes_bytes), decoded);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("values ", place.first, " to ",
                                           place.first + place.values - 1, " in ", name()));
    }
    return visit(place.first, decoded);
  });
}

absl::Status DifferenceCodec::Accumulate(std::span<const uint8_t> encoded,
                                         std::span<const float> /*base*/, double weight,
                                         std::span<double> sum) const {
  return VisitBlocks(encoded, sum.size(), [&](size_t first, std::span<const float> delta) {
    for (size_t i = 0; i < delta.size(); ++i) {
      sum[first + i] += weight * static_cast<double>(delta[i]);
    }
    return absl::OkStatus();
  });
}

absl::Status DifferenceCodec::Apply(std::span<const uint8_t> encoded,
                                    std::span<float> values) const {
  return VisitBlocks(encoded, values.size(), [&](size_t first, std::span<const float> delta) {
    for (size_t i = 0; i < delta.size(); ++i) {
      const float base = values[first + i];
      values[first + i] = base - delta[i];
      if (!std::isfinite(values[first + i])) return NotFiniteAfterwards(first + i, base, delta[i]);
    }
    return absl::OkStatus();
  });
}

absl::Status DifferenceCodec::Validate(std::span<const uint8_t> encoded,
                                       std::span<const float> base) const {
  return VisitBlocks(encoded, base.size(), [&](size_t first, std::span<const float> delta) {
    for (size_t i = 0; i < delta.size(); ++i) {
      if (!std::isfinite(base[first + i] - delta[i])) {
        return NotFiniteAfterwards(first + i, base[first + i], delta[i]);
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace causeway
