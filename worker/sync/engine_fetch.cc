// How an engine begins with the published state, while the run goes on.
#include "worker/sync/sync_engine.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"

namespace causeway::worker {
namespace {

// Between two fragments that are fetched, the run's step may be so old.
constexpr absl::Duration kLook = absl::Seconds(1);

}  // namespace

absl::StatusOr<int64_t> SyncEngine::Fetch(int64_t run_step, const RunStep& now) {
  const int fragments = options_.plan->fragments();
  int64_t step = run_step;
  for (int i = 0; i < fragments; ++i) {
    RETURN_IF_ERROR(FetchState(i));
    RETURN_IF_ERROR(options_.replica->Mix(i, 0));
    if (now == nullptr) continue;
    ASSIGN_OR_RETURN(step, now(kLook));
    for (int j = 0; j <= i; ++j) RETURN_IF_ERROR(CatchUp(j, step).status());
  }
  // The run goes on while its answers are on their way, too: until there are none, or no fewer.
  int before = std::numeric_limits<int>::max();
  for (;;) {
    if (now != nullptr) {
      ASSIGN_OR_RETURN(step, now(absl::ZeroDuration()));
    }
    step = FirstStep(step);
    int rounds = 0;
    for (int i = 0; i < fragments; ++i) {
      ASSIGN_OR_RETURN(const int caught_up, CatchUp(i, step));
      rounds += caught_up;
    }
    if (now == nullptr || rounds == 0 || rounds >= before) break;
    before = rounds;
  }
  step = FirstStep(step);
  // Rounds that others have in flight at this step are merged when they do.
  for (int i = 0; i < fragments; ++i) {
    if (version(i) < schedule_.RoundsSentBy(i, step)) {
      RETURN_IF_ERROR(Follow({i, version(i) + 1}, step));
    }
  }
  last_step_ = step;
  return step;
}

int64_t SyncEngine::FirstStep(int64_t run_step) const {
  int64_t received = 0;                                // The last send that the states contain.
  int64_t open = std::numeric_limits<int64_t>::max();  // Before the first send that they lack.
  for (int i = 0; i < options_.plan->fragments(); ++i) {
    if (version(i) > 0) received = std::max(received, schedule_.SendStep(i, version(i)));
    open = std::min(open, schedule_.SendStep(i, version(i) + 1) - 1);
  }
  // Published steps need no training again, unless an open round is on the way there: the run's
  // step may be that early because the round lacks its quorum.
  return std::max(run_step, std::min(received, open));
}

absl::StatusOr<int> SyncEngine::CatchUp(int index, int64_t step) {
  int rounds = 0;
  for (; schedule_.MergeStep(index, version(index) + 1) <= step; ++rounds) {
    const int64_t round = version(index) + 1;
    RETURN_IF_ERROR(Follow({index, round}, step));
    const absl::Status landed = Land(index, step);
    // Out of range: the answer was gone, and the state in its place is of a later step.
    if (!absl::IsOutOfRange(landed)) RETURN_IF_ERROR(landed);
    if (version(index) < round) {
      return absl::DataLossError(absl::StrCat("the answer of ", Describe({index, round}),
                                              " is gone, and the state is of round ",
                                              version(index)));
    }
    RETURN_IF_ERROR(FinishMerges());
    RETURN_IF_ERROR(options_.replica->Mix(index, 0));
  }
  return rounds;
}

absl::Status SyncEngine::FetchState(int index) {
  ASSIGN_OR_RETURN(const PulledObject state, options_.exchange->PullState(index));
  const size_t bytes = static_cast<size_t>(options_.plan->range(index).size()) * sizeof(float);
  if (state.bytes.size() != bytes) {
    return absl::DataLossError(absl::StrCat("the state of fragment ", index, " has ",
                                            state.bytes.size(), " bytes; expected ", bytes));
  }
  if (state.round < 0 || state.round > kMaxVersion) {
    return absl::DataLossError(absl::StrCat("the state of fragment ", index, " has the version ",
                                            state.round, "; versions are 0 .. 2^40"));
  }
  ASSIGN_OR_RETURN(const uint64_t hash, options_.replica->SetPublished(index, state.bytes));
  if (hash != state.published_hash) {
    return absl::DataLossError(absl::StrCat("the state of fragment ", index, " hashes to ",
                                            HashToHex(hash), "; the coordinator announced ",
                                            HashToHex(state.published_hash)));
  }
  fragment(index).version = state.round;
  options_.exchange->ReportApplied(index, state.round, hash);
  return absl::OkStatus();
}

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
