// All micro-batches of a step, read at once: what the processes of a site share out. Nobody has
// begun the step when a window cannot be read.
//
// They are dealt out in turn: of `ranks` ranks, rank r has the micro-batches r, r + ranks, and so
// on. A share is what some ranks have, as bytes.
#ifndef CAUSEWAY_WORKER_BACKEND_STEP_TOKENS_H_
#define CAUSEWAY_WORKER_BACKEND_STEP_TOKENS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "worker/backend/backend.h"

namespace causeway::worker {

struct RankRange {
  int first = 0;
  int count = 1;
  int ranks = 1;  // Ranks of the whole site.
};

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

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_STEP_TOKENS_H_
