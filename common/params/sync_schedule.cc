#include "common/params/sync_schedule.h"

#include "absl/base/macros.h"

namespace causeway {

SyncSchedule::SyncSchedule(int fragments, int steps_between_syncs, int overlap_steps)
    : fragments_(fragments),
      steps_between_syncs_(steps_between_syncs),
      overlap_steps_(overlap_steps) {
  ABSL_ASSERT(fragments >= 1 && fragments <= steps_between_syncs);
  ABSL_ASSERT(overlap_steps >= 0 && overlap_steps < steps_between_syncs);
}

int64_t SyncSchedule::Offset(int fragment) const {
  return (int64_t{fragment} + 1) * steps_between_syncs_ / fragments_;
}

int64_t SyncSchedule::SendStep(int fragment, int64_t round) const {
  return Offset(fragment) + (round - 1) * steps_between_syncs_;
}

int64_t SyncSchedule::RoundsSentBy(int fragment, int64_t step) const {
  const int64_t offset = Offset(fragment);
  return step < offset ? 0 : (step - offset) / steps_between_syncs_ + 1;
}

std::vector<SyncEvent> SyncSchedule::SendsAfter(int64_t step) const {
  std::vector<SyncEvent> events;
  for (int fragment = 0; fragment < fragments_; ++fragment) {
    const int64_t since = step - Offset(fragment);
    if (since >= 0 && since % steps_between_syncs_ == 0) {
      events.push_back({fragment, since / steps_between_syncs_ + 1});
    }
  }
  return events;
}

std::vector<SyncEvent> SyncSchedule::MergesAfter(int64_t step) const {
  return SendsAfter(step - overlap_steps_);
}

}  // namespace causeway
