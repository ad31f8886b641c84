#include "worker/sync/early_merges.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "common/params/run_config.h"

namespace causeway::worker {

EarlyMerges::EarlyMerges(const v1::SyncConfig& config, const SyncSchedule& schedule,
                         MergeSteps recorded)
    : schedule_(schedule),
      slack_steps_(MaxOverlapSteps(config) - config.overlap_steps()),
      recorded_(std::move(recorded)) {}

void EarlyMerges::Resume(std::span<const int64_t> versions) {
  unrecorded_from_ = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < schedule_.fragments(); ++i) {
    int64_t round = versions[static_cast<size_t>(i)] + 1;
    while (recorded_.contains({i, round})) ++round;
    unrecorded_from_ = std::min(unrecorded_from_, schedule_.MergeStep(i, round));
  }
}

EarlyMerges::Answer EarlyMerges::After(int64_t step, const SyncEvent& event) const {
  if (!possible() || schedule_.MergeStep(event.fragment, event.round) - slack_steps_ > step) {
    return Answer::kStays;
  }
  const auto recorded = recorded_.find({event.fragment, event.round});
  if (recorded != recorded_.end()) {
    return recorded->second <= step ? Answer::kRecorded : Answer::kStays;
  }
  return step < unrecorded_from_ ? Answer::kStays : Answer::kIfThere;
}

}  // namespace causeway::worker
