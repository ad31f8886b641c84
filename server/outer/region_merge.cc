#include "server/outer/region_merge.h"

#include <algorithm>
#include <array>

#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "server/outer/merge.h"

namespace causeway::server {

absl::StatusOr<RegionMergeResult> MergeForParent(const RegionMergeInput& input,
                                                 std::span<float> residual, ThreadPool* pool) {
  const std::span<const float> published = input.deltas.published;
  const bool gradients = input.deltas.kind == v1::SyncConfig::GRADIENT;
  // FP32 says which float is meant, given the one before; the others round a difference, which is
  // best formed without the values that it is one of.
  const bool against_published = !gradients && input.codec->id() == v1::FP32;
  DeltaCombiner deltas(input.deltas, pool);
  RETURN_IF_ERROR(deltas.Prepare());
  RegionMergeResult result;
  result.object.resize(input.codec->EncodedBytes(published.size()));
  const auto merge_chunk = [&](Range chunk, DeltaCombiner::Scratch& scratch) -> absl::Status {
    alignas(64) std::array<double, kCodecChunk> g_store;
    alignas(64) std::array<float, kCodecChunk> target_store;
    alignas(64) std::array<float, kCodecChunk> base_store;
    const auto target = std::span(target_store).first(chunk.size);
    const auto base = std::span(base_store).first(chunk.size);
    if (against_published) {
      std::ranges::copy(published.subspan(chunk.begin, chunk.size), base.begin());
    } else {
      std::ranges::fill(base, 0.0F);
    }
    std::ranges::copy(base, target.begin());
    ErrorFeedback feedback;
    if (!deltas.empty()) {
      const auto g = std::span(g_store).first(chunk.size);
      RETURN_IF_ERROR(deltas.Combine(chunk, {}, scratch, g));
      for (size_t i = 0; i < chunk.size; ++i) target[i] = static_cast<float>(base[i] - g[i]);
      if (!residual.empty()) {
        feedback = {.residual = residual.subspan(chunk.begin, chunk.size), .decay = input.decay};
      }
    }
    return input.codec->Encode(base, target, feedback,
                               std::span(result.object)
                                   .subspan(input.codec->EncodedBytes(chunk.begin),
                                            input.codec->EncodedBytes(chunk.size)));
  };
  RETURN_IF_ERROR(ForEachSlice(published.size(), kMergeSlice, pool, [&](size_t, Range slice) {
    DeltaCombiner::Scratch scratch;
    return ForEachChunk(slice, [&](Range chunk) { return merge_chunk(chunk, scratch); });
  }));
  result.leaves = LeafChecksums(result.object);
  return result;
}

absl::Status FoldBack(const Codec& codec, std::span<const uint8_t> object,
                      std::span<const float> base, std::span<float> residual) {
  std::vector<double> delta(residual.size(), 0.0);
  RETURN_IF_ERROR(codec.Accumulate(object, base, 1.0, delta));
  for (size_t i = 0; i < residual.size(); ++i) {
    residual[i] = static_cast<float>(residual[i] + delta[i]);
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
