// The exchange over gRPC: fragments as checksummed chunks, over as many lanes as the link has
// connections.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/thread_pool.h"
#include "common/client/exchange.h"
#include "common/client/link.h"
#include "common/client/session.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/transfer/lane_client.h"

namespace causeway {

class GrpcExchange final : public Exchange {
 public:
  struct Options {
    Link* link = nullptr;        // Observes the lanes. These three outlive the exchange.
    Session* session = nullptr;  // Says whether a transfer that failed is tried again.
    const FragmentPlan* plan = nullptr;
    v1::SyncConfig sync;  // Complete.
  };
  explicit GrpcExchange(Options options);
  // No call is under way.
  ~GrpcExchange() override;

  absl::Status Push(const Contribution& contribution) override;
  absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round, int64_t due_step) override;
  // At once.
  absl::StatusOr<PulledObject> PushAndPull(
      const Contribution& contribution,
      const std::function<void(const absl::Status&)>& pushed) override;
  absl::StatusOr<PulledObject> PullState(int fragment) override;
  void ReportApplied(int fragment, int64_t round, uint64_t published_hash) override;
  void Cancel() override { client_->Cancel(); }
  // Count all bytes of the link, of other exchanges too.
  int64_t bytes_up() const override;
  int64_t bytes_down() const override;

 private:
  LaneClient::Handle Offer(const Contribution& contribution);
  absl::Status AwaitOffer(const Contribution& contribution, const LaneClient::Handle& offer);
  LaneClient::Handle WantAnswer(int fragment, int64_t round, int64_t due_step);
  absl::StatusOr<PulledObject> AwaitObject(const LaneClient::Handle& wanted);

  const Options options_;
  WorkQueue packer_;
  std::shared_ptr<LaneClient> client_;
  std::unique_ptr<LaneDialer> dialer_;
  absl::Mutex mutex_;
  // By fragment: the version that this worker holds, and its hash, against which deltas are taken.
  std::map<int, std::pair<int64_t, uint64_t>> applied_ ABSL_GUARDED_BY(mutex_);
};

// The published state of a run, fetched from its coordinator while it goes on.

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

// Fetches every fragment over one lane of the first channel, one after the other; a lane that
// breaks is opened again, and goes on with what is missing. Errors are those of a Want; UNAVAILABLE
// if nothing comes; DATA_LOSS if what comes is not what was announced.
absl::StatusOr<PublishedState> PullPublishedState(RenewedChannels& channels,
                                                  const std::string& run_id,
                                                  const FragmentPlan& plan,
                                                  const StatePullOptions& options);

}  // namespace causeway
