#include "common/codec/difference_codec.h"

#include <algorithm>
#include <cmath>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

// Where the bytes of one block, or of all of a chunk's, are.
struct BlockPlace {
  size_t first;  // Index of the first value.
  size_t values;
  size_t scale_offset;
  size_t codes_offset;
};

constexpr size_t CeilDivide(size_t a, size_t b) { return a / b + (a % b != 0 ? 1 : 0); }

constexpr size_t ChunkBytes(size_t values, size_t scale_bytes, size_t code_bits) {
  return CeilDivide(values, kCodecBlock) * scale_bytes + CeilDivide(values * code_bits, 8);
}

// Calls `kernel` for every chunk, with its number of whole blocks, and `visit` for every block of
// it beyond those that the kernel says it has done, until there is an error.
template <typename Kernel, typename Visit>
absl::Status ForEachBlock(size_t values, size_t scale_bytes, size_t code_bits, Kernel kernel,
                          Visit visit) {
  size_t chunk_offset = 0;
  for (size_t begin = 0; begin < values; begin += kCodecChunk) {
    const size_t chunk_values = std::min(kCodecChunk, values - begin);
    const BlockPlace chunk = {
        .first = begin,
        .values = chunk_values,
        .scale_offset = chunk_offset,
        .codes_offset = chunk_offset + CeilDivide(chunk_values, kCodecBlock) * scale_bytes};
    const size_t done = kernel(chunk, chunk_values / kCodecBlock);
    for (size_t i = done * kCodecBlock; i < chunk_values; i += kCodecBlock) {
      RETURN_IF_ERROR(
          visit(BlockPlace{.first = begin + i,
                           .values = std::min(kCodecBlock, chunk_values - i),
                           .scale_offset = chunk.scale_offset + i / kCodecBlock * scale_bytes,
                           .codes_offset = chunk.codes_offset + i * code_bits / 8}));
    }
    chunk_offset += ChunkBytes(chunk_values, scale_bytes, code_bits);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEncodedSize(const Codec& codec, size_t bytes, size_t values) {
  if (bytes == codec.EncodedBytes(values)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%d values in %s take %d bytes, not %d", values,
                                                    codec.name(), codec.EncodedBytes(values),
                                                    bytes));
}

absl::Status CheckEncodeSizes(const Codec& codec, size_t base, size_t target, size_t residual,
                              size_t bytes) {
  if (target != base || (residual != 0 && residual != base)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("base, target and residual must be equally long, not %d, %d and %d", base,
                        target, residual));
  }
  return CheckEncodedSize(codec, bytes, base);
}

absl::Status TooLarge(const Codec& codec, size_t index, float difference, float base, float target,
                      float largest) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "value %d: the difference is %g (base %g, target %g), and %s carries magnitudes up to %g; "
      "has the training diverged?",
      index, difference, base, target, codec.name(), largest));
}

absl::Status NotFiniteAfterwards(size_t index, float base, float delta) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "value %d: the decoded difference %g takes %g beyond fp32", index, delta, base));
}

size_t DifferenceCodec::EncodedBytes(size_t values) const {
  return values / kCodecChunk * ChunkBytes(kCodecChunk, scale_bytes_, code_bits_) +
         ChunkBytes(values % kCodecChunk, scale_bytes_, code_bits_);
}

absl::Status DifferenceCodec::Encode(std::span<const float> base, std::span<const float> target,
                                     const ErrorFeedback& feedback, std::span<uint8_t> out) const {
  const size_t values = base.size();
  const std::span<float> residual = feedback.residual;
  RETURN_IF_ERROR(CheckEncodeSizes(*this, values, target.size(), residual.size(), out.size()));
  const CodecKernels* const kernels = Kernels();
  const auto encode_chunk = [&](const BlockPlace& chunk, size_t blocks) -> size_t {
    if (kernels == nullptr) return 0;
    return kernels->encode(base.data() + chunk.first, target.data() + chunk.first,
                           residual.empty() ? nullptr : residual.data() + chunk.first,
                           feedback.decay, blocks, out.data() + chunk.scale_offset,
                           out.data() + chunk.codes_offset);
  };
  const auto encode_block = [&](const BlockPlace& place) -> absl::Status {
    std::array<float, kCodecBlock> difference_store;
    std::array<float, kCodecBlock> decoded_store;
    const auto difference = std::span(difference_store).first(place.values);
    const auto decoded = std::span(decoded_store).first(residual.empty() ? 0 : place.values);
    for (size_t i = 0; i < place.values; ++i) {
      const size_t index = place.first + i;
      difference[i] = base[index] - target[index];
      if (!residual.empty()) difference[i] += feedback.decay * residual[index];
      // NaNs and infinities fail this, too.
      if (!(std::abs(difference[i]) <= largest_magnitude_)) {
        return TooLarge(*this, index, difference[i], base[index], target[index],
                        largest_magnitude_);
      }
    }
    const auto scale = out.subspan(place.scale_offset, scale_bytes_);
    const auto codes = out.subspan(place.codes_offset, CeilDivide(place.values * code_bits_, 8));
    std::fill(scale.begin(), scale.end(), uint8_t{0});
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    EncodeBlock(difference, scale, codes, decoded);
    for (size_t i = 0; i < decoded.size(); ++i) {
      residual[place.first + i] = difference[i] - decoded[i];
    }
    return absl::OkStatus();
  };
  return ForEachBlock(values, scale_bytes_, code_bits_, encode_chunk, encode_block);
}

const CodecKernels* DifferenceCodec::Kernels() const {
  return path_ == CodecPath::kVector ? FindCodecKernels(id()) : nullptr;
}

absl::Status DifferenceCodec::Decode(std::span<const uint8_t> encoded, size_t values,
                                     ChunkKernel decode_chunk, BlockVisitor visit) const {
  RETURN_IF_ERROR(CheckEncodedSize(*this, encoded.size(), values));
  const auto run_kernel = [&](const BlockPlace& chunk, size_t blocks) {
    return decode_chunk(chunk.first, encoded.data() + chunk.scale_offset,
                        encoded.data() + chunk.codes_offset, blocks);
  };
  const auto decode_block = [&](const BlockPlace& place) -> absl::Status {
    std::array<float, kCodecBlock> decoded_store;
    const auto decoded = std::span(decoded_store).first(place.values);
    const absl::Status status = DecodeBlock(
        encoded.subspan(place.scale_offset, scale_bytes_),
        encoded.subspan(place.codes_offset, CeilDivide(place.values * code_bits_, 8)), decoded);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("values ", place.first, " to ",
                                           place.first + place.values - 1, " in ", name()));
    }
    return visit(place.first, decoded);
  };
  return ForEachBlock(values, scale_bytes_, code_bits_, run_kernel, decode_block);
}

absl::Status DifferenceCodec::Accumulate(std::span<const uint8_t> encoded,
                                         std::span<const float> /*base*/, double weight,
                                         std::span<double> sum) const {
  const CodecKernels* const kernels = Kernels();
  return Decode(
      encoded, sum.size(),
      [&](size_t first, const uint8_t* scales, const uint8_t* codes, size_t blocks) -> size_t {
        if (kernels == nullptr) return 0;
        return kernels->accumulate(scales, codes, nullptr, weight, blocks, sum.data() + first);
      },
      [&](size_t first, std::span<const float> delta) {
        for (size_t i = 0; i < delta.size(); ++i) {
          sum[first + i] += weight * static_cast<double>(delta[i]);
        }
        return absl::OkStatus();
      });
}

absl::Status DifferenceCodec::WeightedSum(std::span<const WeightedPart> parts,
                                          std::span<const float> base,
                                          std::span<const float* const> upcoming,
                                          std::span<double> sum) const {
  if (SumWithKernel(parts, upcoming, sum)) return absl::OkStatus();
  return Codec::WeightedSum(parts, base, upcoming, sum);
}

bool DifferenceCodec::SumWithKernel(std::span<const WeightedPart> parts,
                                    std::span<const float* const> upcoming,
                                    std::span<double> sum) const {
  const CodecKernels* const kernels = Kernels();
  const bool fits = std::all_of(parts.begin(), parts.end(), [&](const WeightedPart& part) {
    return part.encoded.size() == EncodedBytes(sum.size());
  });
  if (kernels == nullptr || kernels->weighted_sum == nullptr || !fits ||
      sum.size() % kCodecBlock != 0) {
    return false;
  }
  absl::InlinedVector<WeightedBlocks, 16> chunks(parts.size());
  absl::InlinedVector<const float*, 4> ahead(upcoming.begin(), upcoming.end());
  for (size_t begin = 0; begin < sum.size(); begin += kCodecChunk) {
    const size_t blocks = std::min(kCodecChunk, sum.size() - begin) / kCodecBlock;
    for (size_t i = 0; i < parts.size(); ++i) {
      const uint8_t* const chunk = parts[i].encoded.data() + EncodedBytes(begin);
      chunks[i] = {
          .scales = chunk, .codes = chunk + blocks * scale_bytes_, .weight = parts[i].weight};
    }
    if (kernels->weighted_sum(chunks, blocks, ahead, sum.data() + begin) != blocks) {
      return false;
    }
    for (const float*& array : ahead) array += blocks * kCodecBlock;
  }
  return true;
}

absl::Status DifferenceCodec::Apply(std::span<const uint8_t> encoded,
                                    std::span<float> values) const {
  const CodecKernels* const kernels = Kernels();
  return Decode(
      encoded, values.size(),
      [&](size_t first, const uint8_t* scales, const uint8_t* codes, size_t blocks) -> size_t {
        if (kernels == nullptr) return 0;
        return kernels->apply(scales, codes, blocks, values.data() + first);
      },
      [&](size_t first, std::span<const float> delta) {
        for (size_t i = 0; i < delta.size(); ++i) {
          const float base = values[first + i];
          values[first + i] = base - delta[i];
          if (!std::isfinite(values[first + i])) {
            return NotFiniteAfterwards(first + i, base, delta[i]);
          }
        }
        return absl::OkStatus();
      });
}

absl::Status DifferenceCodec::AddSquares(std::span<const uint8_t> encoded,
                                         std::span<const float> base,
                                         std::span<double, kSquareSums> sums) const {
  const CodecKernels* const kernels = Kernels();
  return Decode(
      encoded, base.size(),
      [&](size_t, const uint8_t* scales, const uint8_t* codes, size_t blocks) -> size_t {
        if (kernels == nullptr) return 0;
        return kernels->squares(scales, codes, nullptr, blocks, sums.data());
      },
      [&](size_t first, std::span<const float> delta) {
        for (size_t i = 0; i < delta.size(); ++i) {
          sums[(first + i) % kSquareSums] += double{delta[i]} * double{delta[i]};
        }
        return absl::OkStatus();
      });
}

}  // namespace causeway
