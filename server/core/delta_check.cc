#include "server/core/delta_check.h"

#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/draws.h"

namespace causeway::server {

DeltaCheck::DeltaCheck(int fragment, const FragmentRange& range, const Codec& codec,
                       const v1::RunConfig& config)
    : fragment_(fragment),
      values_(static_cast<size_t>(range.size())),
      codec_chunks_((values_ + kCodecChunk - 1) / kCodecChunk),
      codec_(codec),
      max_workers_(config.membership().max_workers()),
      needs_base_(codec.id() == v1::FP32 &&
                  config.sync().contribution() != v1::SyncConfig::GRADIENT) {}

size_t DeltaCheck::CodesBegin(size_t codec_chunk) const {
  return codec_.EncodedBytes(std::min(codec_chunk * kCodecChunk, values_));
}

std::pair<size_t, size_t> DeltaCheck::ChunksWithin(size_t leaf) const {
  const size_t stride = CodesBegin(1);
  const size_t end = (leaf + 1) * kTreeLeafBytes;
  return {(leaf * kTreeLeafBytes + stride - 1) / stride,
          end >= CodesBegin(codec_chunks_) ? codec_chunks_ : end / stride};
}

absl::StatusOr<double> DeltaCheck::SquaresOf(size_t chunk, std::span<const uint8_t> codes,
                                             std::span<const float> published) const {
  static constexpr std::array<float, kCodecChunk> kZeros = {};
  const size_t begin = chunk * kCodecChunk;
  const size_t count = std::min(kCodecChunk, values_ - begin);
  const std::span<const float> base =
      needs_base_ ? published.subspan(begin, count) : std::span<const float>(kZeros).first(count);
  absl::StatusOr<double> squares = codec_.SumOfSquares(codes, base);
  if (squares.ok() || chunk == 0) return squares;
  return Annotate(squares.status(), absl::StrCat("counted from value ", begin));
}

absl::Status DeltaCheck::CheckHeader(const v1::PushHeader& header) const {
  if (header.codec() != codec_.id()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run's codec_up is ", v1::Codec_Name(codec_.id()), ", the push says ",
                     v1::Codec_Name(header.codec())));
  }
  // Every codec's size is fixed.
  const auto bytes = static_cast<int64_t>(codec_.EncodedBytes(values_));
  if (header.total_bytes() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("fragment ", fragment_, " takes ", bytes,
                                                   " bytes, the push says ", header.total_bytes()));
  }
  if (header.tokens() < 0 || header.tokens() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens must be 0 .. 2^48, the push says ", header.tokens()));
  }
  return DrawsFromProto(header.draws(), max_workers_).status();
}

absl::Status DeltaCheck::CheckBytes(const v1::PushHeader& header, const ReceivedObject& object) {
  const std::span<const uint8_t> bytes = object.bytes.view();
  if (std::ssize(bytes) != header.total_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the object has ", bytes.size(), " bytes, its header says ", header.total_bytes()));
  }
  const uint64_t hash = object.tree_hash.has_value() ? *object.tree_hash : TreeHash(bytes);
  if (hash == header.object_hash()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the object's hash is ", HashToHex(hash),
                                          ", its header says ", HashToHex(header.object_hash())));
}

std::vector<double> DeltaCheck::MeasureLeaf(size_t leaf, std::span<const uint8_t> bytes,
                                            std::span<const float> published) const {
  std::vector<double> all;
  const size_t offset = leaf * kTreeLeafBytes;
  const auto [begin, end] = ChunksWithin(leaf);
  for (size_t chunk = begin; chunk < end; ++chunk) {
    const size_t at = CodesBegin(chunk);
    const absl::StatusOr<double> squares =
        SquaresOf(chunk, bytes.subspan(at - offset, CodesBegin(chunk + 1) - at), published);
    if (!squares.ok()) return {};
    all.push_back(*squares);
  }
  return all;
}

absl::StatusOr<double> DeltaCheck::Norm(const ReceivedObject& object,
                                        std::span<const float> published) const {
  const std::span<const uint8_t> bytes = object.bytes.view();
  double sum = 0;
  size_t chunk = 0;
  for (size_t leaf = 0; leaf * kTreeLeafBytes < bytes.size(); ++leaf) {
    const auto [begin, end] = ChunksWithin(leaf);
    const bool known = leaf < object.squares.size() && object.squares[leaf].size() == end - begin;
    // The first of them may lie across the border of the leaf before.
    for (; chunk < end; ++chunk) {
      if (known && chunk >= begin) {
        sum += object.squares[leaf][chunk - begin];
        continue;
      }
      const size_t at = CodesBegin(chunk);
      ASSIGN_OR_RETURN(const double squares,
                       SquaresOf(chunk, bytes.subspan(at, CodesBegin(chunk + 1) - at), published));
      sum += squares;
    }
  }
  return std::sqrt(sum);
}

}  // namespace causeway::server
