// When each fragment is sent and merged (arXiv 2501.18512, algorithm 2).
//
// Inner steps count from 1. Fragment k of F is sent after steps t with
//
//   t >= offset(k)  and  (t - offset(k)) mod H == 0,    offset(k) = floor((k + 1) * H / F)
//
// which spreads the sends evenly over H and reproduces the paper's "every 11 / 5 / 2 steps" for
// 24 / 48 / 108 layers of three per fragment, H = 100. The send after step
// offset(k) + (r - 1) * H belongs to round r, and its answer is merged tau steps later. Several
// fragments are in flight at once when tau > H / F; the same fragment never is twice (tau < H).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/macros.h"

namespace causeway {

// Paces count in 1/1000: at this one every inner step is a step of the schedule.
inline constexpr int64_t kPaceOne = 1000;

struct SyncEvent {
  int fragment = 0;
  int64_t round = 0;
  bool operator==(const SyncEvent&) const = default;
};

// Immutable and thread-safe.
class SyncSchedule {
 public:
  // 1 <= fragments <= steps_between_syncs, 0 <= overlap_steps < steps_between_syncs (or 0 when
  // steps_between_syncs is 1); checked by CompleteRunConfig and by the caller.
  SyncSchedule(int fragments, int steps_between_syncs, int overlap_steps)
      : fragments_(fragments),
        steps_between_syncs_(steps_between_syncs),
        overlap_steps_(overlap_steps) {
    ABSL_ASSERT(fragments >= 1 && fragments <= steps_between_syncs);
    ABSL_ASSERT(overlap_steps >= 0 && overlap_steps < steps_between_syncs);
  }

  int fragments() const { return fragments_; }
  int64_t Offset(int fragment) const {
    return (int64_t{fragment} + 1) * steps_between_syncs_ / fragments_;
  }
  // The step after which round `round` >= 1 is sent, and the one after which it is merged.
  int64_t SendStep(int fragment, int64_t round) const {
    return Offset(fragment) + (round - 1) * steps_between_syncs_;
  }
  int64_t MergeStep(int fragment, int64_t round) const {
    return SendStep(fragment, round) + overlap_steps_;
  }
  // Rounds of the fragment whose send step is <= step; also the round sent last.
  int64_t RoundsSentBy(int fragment, int64_t step) const {
    const int64_t offset = Offset(fragment);
    return step < offset ? 0 : (step - offset) / steps_between_syncs_ + 1;
  }
  int64_t RoundsMergedBy(int fragment, int64_t step) const {
    return RoundsSentBy(fragment, step - overlap_steps_);
  }

  // Rounds due after `step`, in order of fragment. With tau = 0 a round is in both.
  std::vector<SyncEvent> SendsAfter(int64_t step) const {
    std::vector<SyncEvent> events;
    for (int fragment = 0; fragment < fragments_; ++fragment) {
      const int64_t since = step - Offset(fragment);
      if (since >= 0 && since % steps_between_syncs_ == 0) {
        events.push_back({fragment, since / steps_between_syncs_ + 1});
      }
    }
    return events;
  }
  std::vector<SyncEvent> MergesAfter(int64_t step) const {
    return SendsAfter(step - overlap_steps_);
  }

 private:
  int fragments_;
  int steps_between_syncs_;
  int overlap_steps_;
};

}  // namespace causeway
