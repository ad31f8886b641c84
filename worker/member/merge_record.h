// The merges of a worker, and the step after each (merges.jsonl): with an elastic overlap that
// depends on the network, so a process that resumes from a checkpoint, or repeats a whole run,
// reads it here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/params/sync_schedule.h"
#include "common/telemetry/event_log.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {

// The merges of a record, in its order; none if there is no such file and it `may_be_absent`. A
// last line that was cut off is left out. NOT_FOUND; DATA_LOSS for any other line that is none.
absl::StatusOr<std::vector<RecordedMerge>> ReadMergeRecord(FileSystem& file_system,
                                                           const std::string& path,
                                                           bool may_be_absent);

// Not thread-safe.
class MergeRecord {
 public:
  // Goes on after the merges that the file holds; `anew`: with none.
  static absl::StatusOr<std::unique_ptr<MergeRecord>> Open(FileSystem& file_system,
                                                           const std::string& path, bool anew);

  // Writes it, unless the round is there: a merge that is repeated is the one of the record.
  absl::Status Add(const RecordedMerge& merge);
  // The same of a merge that was done: warns of the first error.
  void Note(const RecordedMerge& merge);

  // The merges that Open found.
  const std::vector<RecordedMerge>& merges() const { return merges_; }

 private:
  std::vector<RecordedMerge> merges_;
  std::set<std::pair<int, int64_t>> rounds_;  // Fragment and round.
  std::unique_ptr<JsonLinesFile> file_;
  absl::Status noted_;  // How the last Note went.
};

// Where a worker is in the run's schedule, when an inner step may count for more than one step.
//
// Schedule, budget and learning rate are in steps of the schedule. At pace 1 every inner step is
// one of them. At pace k (the coordinator's order for a worker k times as slow as the fastest) an
// inner step advances by k on average: by whole steps, with the fraction carried on. It takes the
// learning rate of the step it ends at, and the next windows of its worker's part of the data.
//
// All of it is in a checkpoint, so a restored worker does the same steps.

// Not thread-safe.
class StepCounter {
 public:
  // step >= 0, pace_milli >= kPaceOne, 0 <= carry_milli < 1000.
  explicit StepCounter(int64_t step = 0, int64_t pace_milli = kPaceOne, int64_t carry_milli = 0)
      : step_(step), pace_milli_(pace_milli), carry_milli_(carry_milli) {}

  int64_t step() const { return step_; }
  int64_t pace_milli() const { return pace_milli_; }
  int64_t carry_milli() const { return carry_milli_; }

  // The step at which the next inner step ends: at most `end`, which lies ahead.
  int64_t Next(int64_t end) const {
    return std::min(end, step_ + (carry_milli_ + pace_milli_) / kPaceOne);
  }

  // An inner step was done; returns Next.
  int64_t Advance(int64_t end) {
    const int64_t next = Next(end);
    carry_milli_ = (carry_milli_ + pace_milli_) % kPaceOne;
    return step_ = next;
  }

  // From the next inner step on. What was carried is dropped where the pace is another one.
  void SetPace(int64_t pace_milli) {
    if (pace_milli == pace_milli_) return;
    pace_milli_ = pace_milli;
    carry_milli_ = 0;
  }

 private:
  int64_t step_;
  int64_t pace_milli_;
  int64_t carry_milli_;
};

}  // namespace causeway::worker
