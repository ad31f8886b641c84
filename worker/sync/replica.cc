#include "worker/sync/replica.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

// Values that are encoded at once: small beside a leaf, and whole codec chunks.
constexpr size_t kEncodedSlice = 16 * kCodecChunk;

}  // namespace

absl::StatusOr<EncodedObject> EncodeObject(const Codec& codec, std::span<const float> base,
                                           std::span<const float> target,
                                           const ErrorFeedback& feedback) {
  if (target.size() != base.size() ||
      (!feedback.residual.empty() && feedback.residual.size() != base.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("base, target and residual must be equally long, not ", base.size(), ", ",
                     target.size(), " and ", feedback.residual.size()));
  }
  EncodedObject object;
  object.bytes.resize(codec.EncodedBytes(base.size()));
  const std::span<uint8_t> bytes = object.bytes;
  size_t hashed = 0;
  for (size_t begin = 0; begin < base.size(); begin += kEncodedSlice) {
    const size_t size = std::min(kEncodedSlice, base.size() - begin);
    const size_t offset = codec.EncodedBytes(begin);
    const size_t end = offset + codec.EncodedBytes(size);
    ErrorFeedback part = feedback;
    if (!feedback.residual.empty()) part.residual = feedback.residual.subspan(begin, size);
    const absl::Status status = codec.Encode(base.subspan(begin, size), target.subspan(begin, size),
                                             part, bytes.subspan(offset, end - offset));
    if (begin > 0) {
      RETURN_IF_ERROR(Annotate(status, absl::StrCat("counted from value ", begin)));
    }
    RETURN_IF_ERROR(status);
    while (hashed < end && (end - hashed >= kTreeLeafBytes || end == bytes.size())) {
      const std::span<const uint8_t> leaf =
          bytes.subspan(hashed, std::min(kTreeLeafBytes, end - hashed));
      object.leaves.push_back(Checksum64(leaf));
      hashed += leaf.size();
    }
  }
  return object;
}

size_t ObjectBytesInFlight(const FragmentPlan& plan, const v1::SyncConfig& sync) {
  size_t bytes = 0;
  for (const v1::Codec id : {sync.codec_up(), sync.codec_down()}) {
    const Codec& codec = *FindCodec(id).value();
    for (int i = 0; i < plan.fragments(); ++i) {
      bytes += codec.EncodedBytes(static_cast<size_t>(plan.range(i).size()));
    }
  }
  return bytes;
}

}  // namespace causeway::worker
