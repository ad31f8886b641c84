// One round of one fragment at a region: the weighted mean of its sites' deltas, and what the last
// encoding left out, as one delta for the parent.
//
//   g        = sum_m w_m * Decode(delta_m)       as in merge.h
//   delta    = Encode(g + decay * residual)
//   residual = g + decay * residual - Decode(delta)
//
// Cut and summed as in merge.h: the same bits on any machine and number of threads.
#ifndef CAUSEWAY_SERVER_OUTER_REGION_MERGE_H_
#define CAUSEWAY_SERVER_OUTER_REGION_MERGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_buffer.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "server/outer/delta_combiner.h"

namespace causeway::server {

struct RegionMergeInput {
  DeltaCombiner::Input deltas;  // Without contributions, the delta is of zeros: it carries nothing.
  const Codec* codec = nullptr;
  float decay = 1;  // The share of the residual that is carried.
};

struct RegionMergeResult {
  ByteBuffer object;
  std::vector<uint64_t> leaves;  // LeafChecksums(object).
};

// `residual` is as long as the fragment and becomes what this encoding leaves out; empty: nothing
// is carried. INVALID_ARGUMENT as MergeFragment, or where a value cannot be encoded: the residual
// is then void. Runs on `pool` (null: on this thread).
absl::StatusOr<RegionMergeResult> MergeForParent(const RegionMergeInput& input,
                                                 std::span<float> residual, ThreadPool* pool);

// The parent closed the round without it: residual += Decode(object). `published` as the object was
// encoded against.
absl::Status FoldBack(const Codec& codec, std::span<const uint8_t> object,
                      std::span<const float> base, std::span<float> residual);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OUTER_REGION_MERGE_H_
