// The exchange over gRPC: fragments as streams of checksummed chunks, over as many connections as
// the link has.
#ifndef CAUSEWAY_WORKER_LINK_GRPC_EXCHANGE_H_
#define CAUSEWAY_WORKER_LINK_GRPC_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/params/fragment_plan.h"
#include "worker/link/downlink.h"
#include "worker/link/link.h"
#include "worker/link/session.h"
#include "worker/link/uplink.h"
#include "worker/sync/exchange.h"

namespace causeway::worker {

class GrpcExchange final : public Exchange {
 public:
  struct Options {
    Link* link = nullptr;  // These three outlive the exchange.
    Session* session = nullptr;
    const FragmentPlan* plan = nullptr;
    std::string run_id;
    std::string worker_id;
    v1::SyncConfig sync;  // Complete.
  };
  explicit GrpcExchange(Options options);

  absl::Status Push(const Contribution& contribution) override;
  absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round, int64_t due_step) override;
  // At once, the pull on a thread of its own, for a few of them at a time.
  absl::StatusOr<PulledObject> PushAndPull(
      const Contribution& contribution,
      const std::function<void(const absl::Status&)>& pushed) override;
  absl::StatusOr<PulledObject> PullState(int fragment) override;
  void ReportApplied(int fragment, int64_t round, uint64_t published_hash) override;
  void Cancel() override;
  // Of the link, whatever exchange they belong to.
  int64_t bytes_up() const override;
  int64_t bytes_down() const override;

 private:
  absl::StatusOr<PulledObject> PullAnswer(int fragment, int64_t round, int64_t due_step,
                                          Downlink::Ticket& ticket);
  absl::StatusOr<PulledObject> Pull(v1::PullRequest request, int64_t expected_bytes,
                                    Downlink::Ticket& ticket);

  const Options options_;
  Uplink uplink_;
  Downlink downlink_;
  absl::Mutex mutex_;
  // By fragment: the version that this worker holds, and its hash, against which deltas are taken.
  std::map<int, std::pair<int64_t, uint64_t>> applied_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> early_pulls_{0};  // That wait for rounds whose push is still under way.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_GRPC_EXCHANGE_H_
