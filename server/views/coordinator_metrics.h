// The coordinator's answer to GET /metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/metric_page.h"
#include "server/standby/standbys.h"
#include "server/views/run_history.h"

namespace causeway::server {

// Thread-safe.
//
// Series with the label `worker` are those of members, of whom there are membership.max_workers at
// most. Of one that was lost causeway_worker_up stays, at 0, for an hour, and of as many as may be
// members; one that has left is gone at once.
class CoordinatorMetrics {
 public:
  // Where the figures come from. All of it outlives the object.
  struct Options {
    FileSystem* file_system = nullptr;
    const Clock* clock = nullptr;
    RunHistory* history = nullptr;
    std::string run_dir = {};
    CertificateFiles certificates = {};
    const EventFile* events = nullptr;
    const Standbys* standbys = nullptr;
    std::function<int64_t()> commits = nullptr;  // Counts the commits of the run's folder.
    bool replicated = false;                     // Workers are told what standbys have.
  };
  explicit CoordinatorMetrics(Options options) : options_(std::move(options)) {}

  // `status`: that of now.
  void AddTo(MetricPage& page, const v1::RunStatus& status, bool healthy);
  // The run and its workers alone.
  void AddRun(MetricPage& page, const v1::RunStatus& status, bool healthy);

 private:
  // The newest one that a worker told of; after a takeover the one before it.
  std::optional<double> HeldOutLoss() const;
  void AddWorkers(MetricPage& page, const v1::RunStatus& status);
  // The folder's size is measured anew no more often than every kStoreAge: a run that keeps its
  // deltas has very many files.
  void AddStore(MetricPage& page);
  void AddStandbys(MetricPage& page) const;

  const Options options_;
  absl::Mutex mutex_;
  std::map<std::string, absl::Duration> lost_since_ ABSL_GUARDED_BY(mutex_);
  absl::Duration store_measured_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
  double store_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A standby's answer to GET /metrics. `run_dir`: the copy.
std::string StandbyMetricsText(const StandbyNotes& notes, FileSystem& file_system,
                               const std::string& run_dir, const CertificateFiles& certificates);

}  // namespace causeway::server
