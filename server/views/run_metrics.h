// The run and its workers for /metrics, from RunStatus and the heartbeats.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/telemetry/metric_page.h"
#include "prometheus/histogram.h"
#include "server/core/coordinator.h"
#include "server/views/run_history.h"

namespace causeway::server {

// Thread-safe.
//
// Series with the label `worker` are those of members, of whom there are membership.max_workers at
// most. Of one that was lost causeway_worker_up stays, at 0, for an hour, and of as many as may be
// members; one that has left is gone at once.
class RunMetrics final : public RunObserver {
 public:
  // The clock outlives the object.
  explicit RunMetrics(const Clock* clock) : clock_(clock) {}

  void OnHeartbeat(const std::string& worker_id, const v1::Heartbeat& heartbeat) override;

  void AddTo(MetricPage& page, const v1::RunStatus& status, bool healthy);

 private:
  struct Seen {
    v1::Heartbeat heartbeat;
    absl::Duration at;
  };

  void AddWorkers(MetricPage& page, const v1::RunStatus& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  absl::Mutex mutex_;
  std::map<std::string, Seen> heartbeats_ ABSL_GUARDED_BY(mutex_);  // One for each live member.
  std::map<std::string, absl::Duration> lost_since_ ABSL_GUARDED_BY(mutex_);
};

// How long the phases of rounds take, and what came of contributions, for /metrics.
//
//   transfer  a worker was told to send its delta .. the store has it; one sample per delta
//   collect   the first delta is there .. the round closes
//   merge     the round closes .. its answer is published
//   apply     the answer is published .. a worker has it in its copy; one sample per worker
//
// Thread-safe.
class RoundMetrics final : public RunObserver {
 public:
  // Both outlive the object. The history hears of everything first.
  RoundMetrics(const Clock* clock, RunHistory* history);

  void OnContributed(const v1::PushHeader& header, bool quarantined) override;
  void OnPublished(const v1::Round& round, const std::vector<std::string>& missing) override;
  void OnApplied(const std::string& worker_id, int fragment, int64_t round) override;

  // `status`: of now.
  void AddTo(MetricPage& page, const v1::RunStatus& status);

 private:
  enum Phase { kTransfer, kCollect, kMerge, kApply, kPhases };

  // Nothing if one of the two moments is not known.
  void Observe(Phase phase, double from_unix_s, double to_unix_s);

  const Clock* const clock_;
  RunHistory* const history_;
  std::array<prometheus::Histogram, kPhases> phases_;
  std::atomic<int64_t> incomplete_ = 0;
  std::atomic<int64_t> merged_ = 0;
  std::atomic<int64_t> quarantined_ = 0;
};

}  // namespace causeway::server
