// The published state of a run, fetched from its coordinator while it goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/channel.h"

namespace causeway {

struct PublishedState {
  std::vector<float> parameters;  // The arena of the plan.
  // The version of every fragment. Fragments are published in turn, so they are those of different
  // rounds while training goes on: what a worker that joins would get.
  std::vector<int64_t> versions;
};

struct StatePullOptions {
  std::string worker_id;  // On whose behalf; empty: an operator's.
  // By then all has come, or DEADLINE_EXCEEDED.
  absl::Time deadline = absl::InfiniteFuture();
  // If nothing comes for so long, it is given up. A piece of 1 MiB is the least that is seen to
  // come.
  absl::Duration stall = absl::Minutes(1);
  // Called with the bytes that have come and those of the whole state, piece by piece; a fragment
  // that is fetched again counts once.
  std::function<void(int64_t bytes, int64_t all_bytes)> progress = [](int64_t, int64_t) {};
};

// Fetches every fragment over one lane of the channel, one after the other; a lane that breaks is
// opened again, and goes on with what is missing. Errors are those of a Want; UNAVAILABLE if
// nothing comes; DATA_LOSS if what comes is not what was announced.
absl::StatusOr<PublishedState> PullPublishedState(RenewedChannel& channel,
                                                  const std::string& run_id,
                                                  const FragmentPlan& plan,
                                                  const StatePullOptions& options);

}  // namespace causeway
