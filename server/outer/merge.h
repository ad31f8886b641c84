// One round of one fragment at the coordinator (algorithm.md, "The coordinator"):
//
//   g          = sum_m w_m * Decode(delta_m)       in double, in order of worker id; or by another
//                                                  rule, see delta_combiner.h
//   theta      = the outer optimizer's step on g
//   answer     = Encode(published - theta)
//   published -= Decode(answer)
//
// theta - published of the next answer has what quantization leaves out of this one: the downlink
// has error feedback by construction.
//
// One pass over memory: chunk after chunk is decoded from every contribution, stepped, encoded,
// applied and hashed while it is in a core's cache. The work is cut by position alone and summed in
// a fixed order, so the result has the same bits on any number of threads, and the order in which
// contributions are given does not matter. Beside the answer, a merge needs 32 KiB per thread and a
// few dozen bytes per MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/checksum.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "server/outer/delta_combiner.h"
#include "server/outer/outer_optimizer.h"

namespace causeway::server {

// Values of one task: a leaf of TreeHash(published), and whole codec chunks.
inline constexpr size_t kMergeSlice = kTreeLeafBytes / sizeof(float);
static_assert(kMergeSlice % kCodecChunk == 0);

// Views of what the coordinator holds for one fragment. All arrays are equally long.
struct FragmentState {
  std::span<float> theta;
  std::span<float> published;
  std::vector<std::span<float>> optimizer;  // In the order of OuterOptimizer::state_names().
};

struct MergeInput {
  // In any order. Empty: theta and the optimizer stay as they are, and the answer brings published
  // closer to theta.
  std::vector<Contribution> contributions;
  // PARAMETER_DELTA: encoded against published. GRADIENT: against zeros.
  v1::SyncConfig::Contribution kind = v1::SyncConfig::PARAMETER_DELTA;
  MergeRule rule = {};
  const OuterOptimizer* optimizer = nullptr;
  const Codec* answer_codec = nullptr;
  int64_t round = 0;
  int64_t arena_begin = 0;  // FragmentRange::begin.
  // Computes the round twice, at first on copies, a chunk at a time: with FAILED_PRECONDITION every
  // bit of the state is then as it was.
  bool rehearse = false;
};

struct MergeResult {
  ByteBuffer answer;                    // Encoded.
  uint64_t answer_hash = 0;             // TreeHash.
  std::vector<uint64_t> answer_leaves;  // The checksums that it is made of.
  uint64_t published_hash = 0;          // TreeHash of published afterwards.
  double published_norm = 0;            // Norm of published afterwards.
};

// Merges and changes `state`, or returns an error:
//   INVALID_ARGUMENT     a contribution is malformed (names the worker), two have the same worker,
//                        weights do not sum to 1, or lengths differ. Every bit of the state is as
//                        it was.
//   FAILED_PRECONDITION  the step made a value that is not finite or that the answer's codec cannot
//                        carry: the training has diverged. The state is void, unless the round was
//                        rehearsed: some of it has stepped, some not. It must neither be published
//                        nor saved, and no other round may be merged into it.
//   INTERNAL             a contribution that was said to be validated is malformed. Void, too.
// Runs on `pool` (null: on this thread), which nobody else may use meanwhile. The caller keeps
// others from reading `state` while it runs.
absl::StatusOr<MergeResult> MergeFragment(const MergeInput& input, const FragmentState& state,
                                          ThreadPool* pool);

// The Euclidean norm, in double and in one order: the same bits everywhere.
double Norm(std::span<const float> values);

// How much each contribution of a round counts.

// One weight per contribution, in the order given, which does not influence them; they sum to 1
// within rounding, and a single one is exactly 1. TOKENS: in proportion to the tokens trained
// (alike, if nobody trained any); UNIFORM: alike. INVALID_ARGUMENT for a negative count, or
// counts whose sum overflows.
absl::StatusOr<std::vector<double>> ContributionWeights(std::span<const int64_t> tokens,
                                                        v1::MembershipConfig::Weighting weighting);

// One round of one fragment at a region: the weighted mean of its sites' deltas, and what the last
// encoding left out, as one delta for the parent.
//
//   g        = sum_m w_m * Decode(delta_m)       as in merge.h
//   delta    = Encode(g + decay * residual)
//   residual = g + decay * residual - Decode(delta)
//
// Cut and summed as in merge.h: the same bits on any machine and number of threads.

struct RegionMergeInput {
  DeltaCombiner::Input deltas;  // Without contributions, the delta is of zeros: it carries nothing.
  const Codec* codec = nullptr;
  float decay = 1;  // The share of the residual that is carried.
};

// Returns the delta as an answer; nothing is published. `residual` is as long as the fragment and
// becomes what this encoding leaves out; empty: nothing is carried. INVALID_ARGUMENT as
// MergeFragment, or where a value cannot be encoded: the residual is then void. Runs on `pool`
// (null: on this thread).
absl::StatusOr<MergeResult> MergeForParent(const RegionMergeInput& input, std::span<float> residual,
                                           ThreadPool* pool);

// The parent closed the round without it: residual += Decode(object). `published` as the object was
// encoded against.
absl::Status FoldBack(const Codec& codec, std::span<const uint8_t> object,
                      std::span<const float> base, std::span<float> residual);

}  // namespace causeway::server
