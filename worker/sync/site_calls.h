// All micro-batches of a step, read at once: what the processes of a site share out. Nobody has
// begun the step when a window cannot be read.
//
// They are dealt out in turn: of `ranks` ranks, rank r has the micro-batches r, r + ranks, and so
// on. A share is what some ranks have, as bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "worker/sync/backend.h"
#include "worker/sync/remote_part.h"

namespace causeway::worker {

// INVALID_ARGUMENT, with what to change, unless all ranks have equally many micro-batches. `what`
// is what the ranks are called, "GPUs" or "processes", and `fewer` how to have fewer of them.
absl::Status CheckShares(const v1::TrainConfig& train, int ranks, absl::string_view what,
                         absl::string_view fewer);

class StepTokens {
 public:
  // `train` and `model` are complete.
  StepTokens(const v1::TrainConfig& train, const v1::ModelConfig& model);

  // Errors of `read`.
  absl::Status Read(const MicroBatchReader& read);
  // Reads again what Read has read; refers to this.
  MicroBatchReader Reader() const;
  ByteBuffer Share(const RankRange& range) const;

  // Reads a share, whose bytes stay, by the numbers that its micro-batches have in the step.
  // INVALID_ARGUMENT for another length than Share makes; the reader's for a micro-batch that is
  // not in it.
  absl::StatusOr<MicroBatchReader> ReaderOf(std::span<const uint8_t> share,
                                            const RankRange& range) const;

 private:
  const int64_t micro_batches_;
  const size_t tokens_;   // Tokens per micro-batch.
  const bool documents_;  // Where they start, beside inputs and targets.
  std::vector<int32_t> values_;
  size_t stride() const { return (documents_ ? 3 : 2) * tokens_; }
  static void Copy(const int32_t* from, const MicroBatch& out);
};

// Calls of process 0 of a site to the others, over their SiteLinks, beside the methods of a
// PartServer; and the one thing that they ask of it.
//
// All of a site's processes are of one build (worker/commands/site.h), so that nothing here has
// versions. Arrays are as they lie in memory.

enum SiteMethod : int {
  // --- Coming together ---
  kSiteHello = kFirstOtherMethod,  // Who are you? JSON.
  kSiteConfig,                     // The run's RunConfig, serialized.
  kSitePlans,  // The kept measurements of matrix products (GemmPlanStore), as text.
  kSiteBuild,  // Make the backend. argument: the first rank; number: the ranks of the site; bytes:
               // the id of the GPUs' group. Answer: the matrix products, as text.
  kSiteEnd,    // Training is over. Nobody waits for an answer.
  kSiteStop,   // To process 0: this process was told to stop.
  // --- On CPUs (cpu_site.h) ---
  kSiteParameters,  // The arena of the next step.
  kSiteGradient,    // bytes: a share of a step's tokens. Answer: losses and gradient.
  // --- On GPUs (site_backend.h) ---
  kSiteStep,            // argument: the step; bytes: a share of its tokens. Answer: StepShare.
  kSiteSetParameters,   // bytes: the own pieces of master weights.
  kSiteCopyParameters,  // Answer: the same.
  kSiteCopyMoments,     // argument: 0 for the first, 1 for the second. Answer: the own pieces.
  kSiteRestoreFirst,    // bytes: the own pieces of the first moments.
  kSiteRestoreMoments,  // argument: updates; bytes: those of the second.
  kSiteRefreshWeights,  // Process 0 has used its GPUs' weights for an evaluation.
  kSiteMakeParts,       // New ReplicaParts, for the methods of PartServer.
};

// Text in a call or an answer.
inline std::span<const uint8_t> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline std::string TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace causeway::worker
