// How long the phases of rounds take, and what came of contributions, for /metrics.
//
//   transfer  a worker was told to send its delta .. the store has it; one sample per delta
//   collect   the first delta is there .. the round closes
//   merge     the round closes .. its answer is published
//   apply     the answer is published .. a worker has it in its copy; one sample per worker
#ifndef CAUSEWAY_SERVER_METRICS_ROUND_METRICS_H_
#define CAUSEWAY_SERVER_METRICS_ROUND_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "causeway/v1/admin.pb.h"
#include "common/base/clock.h"
#include "common/metrics/metric_page.h"
#include "prometheus/histogram.h"
#include "server/core/run_observer.h"
#include "server/history/run_history.h"

namespace causeway::server {

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

#endif  // CAUSEWAY_SERVER_METRICS_ROUND_METRICS_H_
