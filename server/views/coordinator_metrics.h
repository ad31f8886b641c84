// The coordinator's answer to GET /metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/metric_page.h"
#include "server/core/coordinator.h"
#include "server/standby/standby_notes.h"
#include "server/standby/standbys.h"
#include "server/transfer/lane_registry.h"
#include "server/views/run_metrics.h"

namespace causeway::server {

// Thread-safe.
class CoordinatorMetrics {
 public:
  // Where the figures come from. All of it outlives the object.
  struct Options {
    FileSystem* file_system = nullptr;
    const Clock* clock = nullptr;
    RunHistory* history = nullptr;
    std::string run_dir;
    CertificateFiles certificates;
    const CountingEventLog* events = nullptr;
    const Standbys* standbys = nullptr;
    std::function<int64_t()> commits;  // Counts the commits of the run's folder.
    bool replicated = false;           // Workers are told what standbys have.
  };
  explicit CoordinatorMetrics(Options options);

  // For Coordinator::Options::observers: the history, which the others read, first.
  std::vector<RunObserver*> observers() { return {options_.history, &run_, &rounds_}; }

  // `status` and `load` are those of now.
  std::string Text(const v1::RunStatus& status, bool healthy, const ServerLoad& load);

 private:
  // The folder's size, which is measured anew no more often than every kStoreAge: a run that keeps
  // its deltas has very many files.
  double StoreBytes();
  void AddStore(MetricPage& page);
  void AddStandbys(MetricPage& page) const;
  void AddLoad(MetricPage& page, const ServerLoad& load) const;

  const Options options_;
  RunMetrics run_;
  RoundMetrics rounds_;
  absl::Mutex mutex_;
  absl::Duration store_measured_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
  double store_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A standby's answer to GET /metrics. `run_dir`: the copy.
std::string StandbyMetricsText(const StandbyNotes& notes, FileSystem& file_system,
                               const std::string& run_dir, const CertificateFiles& certificates);

}  // namespace causeway::server
