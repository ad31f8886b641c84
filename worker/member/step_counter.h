// Where a worker is in the run's schedule, when an inner step may count for more than one step.
//
// Schedule, budget and learning rate are in steps of the schedule. At pace 1 every inner step is
// one of them. At pace k (the coordinator's order for a worker k times as slow as the fastest) an
// inner step advances by k on average: by whole steps, with the fraction carried on. It takes the
// learning rate of the step it ends at, and the next windows of its worker's part of the data.
//
// All of it is in a checkpoint, so a restored worker does the same steps.
#ifndef CAUSEWAY_WORKER_MEMBER_STEP_COUNTER_H_
#define CAUSEWAY_WORKER_MEMBER_STEP_COUNTER_H_

#include <algorithm>
#include <cstdint>

#include "common/params/sync_schedule.h"

namespace causeway::worker {

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

#endif  // CAUSEWAY_WORKER_MEMBER_STEP_COUNTER_H_
