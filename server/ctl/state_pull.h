// The published state of a run, fetched from its coordinator while it goes on.
#ifndef CAUSEWAY_SERVER_CTL_STATE_PULL_H_
#define CAUSEWAY_SERVER_CTL_STATE_PULL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/params/fragment_plan.h"

namespace causeway::server {

struct PublishedState {
  std::vector<float> parameters;  // The arena of the plan.
  // The version of every fragment. Fragments are published in turn, so they are those of different
  // rounds while training goes on: what a worker that joins would get.
  std::vector<int64_t> versions;
};

// Fetches every fragment over `channel`, one after the other; a fragment whose stream breaks is
// fetched again, a few times. A peer that is gone is found by the channel's keepalive. Errors are
// those of Exchange.Pull; DATA_LOSS if what comes is not what was announced. `progress(fragment)`
// is called when a fragment is there.
absl::StatusOr<PublishedState> PullPublishedState(const std::shared_ptr<grpc::Channel>& channel,
                                                  const std::string& run_id,
                                                  const FragmentPlan& plan,
                                                  const std::function<void(int)>& progress);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_STATE_PULL_H_
