// Whether a contribution is what its header says, and nothing but codes that a merge can take.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "server/core/fragment_rounds.h"

namespace causeway::server {

size_t FragmentRounds::codec_chunks() const {
  return (static_cast<size_t>(options_.range.size()) + kCodecChunk - 1) / kCodecChunk;
}

size_t FragmentRounds::CodesBegin(size_t codec_chunk) const {
  return options_.codec_up->EncodedBytes(
      std::min(codec_chunk * kCodecChunk, static_cast<size_t>(options_.range.size())));
}

absl::Status FragmentRounds::ValidateCodes(size_t begin, size_t end,
                                           std::span<const uint8_t> codes) const {
  const auto validate = [this](size_t chunk, std::span<const uint8_t> part,
                               std::span<const float> base) {
    const absl::Status status = options_.codec_up->Validate(part, base);
    if (chunk == 0) return status;
    return Annotate(status, absl::StrCat("counted from value ", chunk * kCodecChunk));
  };
  const auto values = std::span(published_).subspan(begin * kCodecChunk);
  if (options_.config->sync().contribution() != v1::SyncConfig::GRADIENT) {
    return validate(begin, codes,
                    values.first(std::min((end - begin) * kCodecChunk, values.size())));
  }
  static constexpr std::array<float, kCodecChunk> kZeros = {};
  for (size_t chunk = begin; chunk < end; ++chunk) {
    const size_t count = std::min(kCodecChunk, values.size() - (chunk - begin) * kCodecChunk);
    RETURN_IF_ERROR(validate(chunk,
                             codes.subspan(CodesBegin(chunk) - CodesBegin(begin),
                                           CodesBegin(chunk + 1) - CodesBegin(chunk)),
                             std::span(kZeros).first(count)));
  }
  return absl::OkStatus();
}

absl::Status FragmentRounds::ValidateLeaf(int64_t round, int64_t leaf,
                                          std::span<const uint8_t> bytes) const {
  const absl::Status not_now = absl::UnavailableError("the round is not open now");
  // A merge would hold up whoever receives.
  if (!data_mutex_.ReaderTryLock()) return not_now;
  bool open = false;
  {
    absl::MutexLock lock(&mutex_);
    open = round == static_cast<int64_t>(published_hashes_.size());
  }
  // Those that lie in the leaf from end to end; VerifyObject checks what lies across a border.
  const size_t offset = static_cast<size_t>(leaf) * kTreeLeafBytes;
  const size_t stride = CodesBegin(1);
  const size_t begin = (offset + stride - 1) / stride;
  const size_t end = offset + bytes.size() == CodesBegin(codec_chunks())
                         ? codec_chunks()
                         : (offset + bytes.size()) / stride;
  absl::Status status = not_now;
  if (open && begin < end) {
    status = ValidateCodes(
        begin, end, bytes.subspan(CodesBegin(begin) - offset, CodesBegin(end) - CodesBegin(begin)));
  } else if (open) {
    status = absl::OkStatus();
  }
  data_mutex_.ReaderUnlock();
  return status;
}

absl::Status FragmentRounds::VerifyObject(const v1::PushHeader& header,
                                          const ReceivedObject& object) const {
  const std::span<const uint8_t> bytes = object.bytes.view();
  if (static_cast<int64_t>(bytes.size()) != header.total_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the object has ", bytes.size(), " bytes, its header says ", header.total_bytes()));
  }
  const uint64_t hash = object.tree_hash.has_value() ? *object.tree_hash : TreeHash(bytes);
  if (hash != header.object_hash()) {
    return absl::DataLossError(absl::StrCat("the object's hash is ", HashToHex(hash),
                                            ", its header says ", HashToHex(header.object_hash())));
  }
  // The round stays open while this contribution is under way, so published_ is the base.
  absl::ReaderMutexLock lock(&data_mutex_);
  if (!object.leaves_valid) return ValidateCodes(0, codec_chunks(), bytes);
  for (size_t border = kTreeLeafBytes; border < bytes.size(); border += kTreeLeafBytes) {
    const size_t chunk = border / CodesBegin(1);
    if (CodesBegin(chunk) == border) continue;
    const size_t begin = CodesBegin(chunk);
    RETURN_IF_ERROR(
        ValidateCodes(chunk, chunk + 1, bytes.subspan(begin, CodesBegin(chunk + 1) - begin)));
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
