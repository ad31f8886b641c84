// How long the phases of rounds take, and what came of contributions, for /metrics.
//
//   transfer  a worker was told to send its delta .. the store has it; one sample per delta
//   collect   the first delta is there .. the round closes
//   merge     the round closes .. its answer is published
//   apply     the answer is published .. a worker has it in its copy; one sample per worker
#ifndef CAUSEWAY_SERVER_METRICS_ROUND_METRICS_H_
#define CAUSEWAY_SERVER_METRICS_ROUND_METRICS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metric_page.h"
#include "prometheus/histogram.h"
#include "server/core/run_observer.h"

namespace causeway::server {

// Thread-safe. What it remembers is bounded by the workers of one round and a few rounds of each
// fragment.
class RoundMetrics final : public RunObserver {
 public:
  // The clock outlives the object.
  explicit RoundMetrics(const Clock* clock);

  void OnPushBegun(const v1::PushHeader& header) override;
  void OnContributed(const v1::PushHeader& header, bool quarantined) override;
  void OnPublished(const RoundRecord& round, const std::vector<std::string>& missing) override;
  void OnApplied(const std::string& worker_id, int fragment, int64_t round) override;

  // `open_fragments`: whose open round has contributions by now; those of a recovered round came
  // before this object was there.
  void AddTo(MetricPage& page, const std::vector<int>& open_fragments);

 private:
  enum Phase { kTransfer, kCollect, kMerge, kApply, kPhases };
  struct Admitted {
    int64_t round = 0;
    absl::Duration since;
  };
  struct Fragment {
    std::map<std::string, Admitted> admitted;                  // By worker.
    std::deque<std::pair<int64_t, absl::Duration>> published;  // Rounds, and when.
    int64_t first_round = 0;  // The round whose first contribution came ...
    absl::Duration first;     // ... then.
  };

  const Clock* const clock_;
  std::array<prometheus::Histogram, kPhases> phases_;
  absl::Mutex mutex_;
  std::map<int, Fragment> fragments_ ABSL_GUARDED_BY(mutex_);
  int64_t incomplete_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t merged_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t quarantined_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_METRICS_ROUND_METRICS_H_
