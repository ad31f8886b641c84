// The run and its workers for /metrics, from RunStatus and the heartbeats.
#ifndef CAUSEWAY_SERVER_METRICS_RUN_METRICS_H_
#define CAUSEWAY_SERVER_METRICS_RUN_METRICS_H_

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/metrics/metric_page.h"
#include "server/core/run_observer.h"

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

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_METRICS_RUN_METRICS_H_
