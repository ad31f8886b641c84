// When an answer is merged before it has to be (sync.max_overlap_steps, docs/algorithm.md).
//
// From overlap_steps after its send on an answer is merged after the first step at which it is
// there. A process that continues what a former one did must merge at the same steps, or what it
// sends again has other bits. The record says when the former one merged. A round that the record
// lacks was not merged before the first step at which the former process would have waited for
// such a round: until then this one merges none of them either.
#ifndef CAUSEWAY_WORKER_SYNC_EARLY_MERGES_H_
#define CAUSEWAY_WORKER_SYNC_EARLY_MERGES_H_

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "causeway/v1/config.pb.h"
#include "common/params/sync_schedule.h"

namespace causeway::worker {

// Fragment and round -> the step after which it was merged.
using MergeSteps = std::map<std::pair<int, int64_t>, int64_t>;

// Not thread-safe.
class EarlyMerges {
 public:
  enum class Answer {
    kStays,     // Not merged now, whether it is there or not.
    kIfThere,   // Merged now if it is there.
    kRecorded,  // Merged now, and waited for.
  };

  // `config` is complete; `schedule` is its, with merge steps at max_overlap_steps. `recorded`:
  // what former processes merged.
  EarlyMerges(const v1::SyncConfig& config, const SyncSchedule& schedule, MergeSteps recorded);

  // False where every answer has one step: overlap_steps is max_overlap_steps.
  bool possible() const { return slack_steps_ > 0; }
  // Steps that an answer may be late, at most, without being waited for.
  int64_t slack_steps() const { return slack_steps_; }

  // This process continues from a checkpoint with these versions, by fragment.
  void Resume(std::span<const int64_t> versions);

  // Decides about a round in flight after `step`, which lies before its last merge step.
  Answer After(int64_t step, const SyncEvent& event) const;

 private:
  const SyncSchedule schedule_;
  const int64_t slack_steps_;
  const MergeSteps recorded_;
  int64_t unrecorded_from_ = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_EARLY_MERGES_H_
