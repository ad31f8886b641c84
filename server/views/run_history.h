// A run's recent past, for the status page and /metrics: what workers said last, their curves, and
// when every delta of every round was sent, arrived, merged, published and applied.
//
// All of it is in memory and bounded, whatever workers say and however long the run takes. It is
// not part of the run's state: a coordinator that takes a run over knows the past rounds from the
// store (Restore), and the curves from a file in the run's folder (RestoreCurves).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.pb.h"
#include "causeway/v1/record.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/telemetry/metric_page.h"
#include "prometheus/histogram.h"
#include "server/core/coordinator.h"
#include "server/store/store.h"
#include "server/views/run_curves.h"

namespace causeway::server {

// The last heartbeat of a worker, and when it came.
struct WorkerHeard {
  v1::Heartbeat heartbeat;
  absl::Duration at;  // Monotonic.
  double unix_s = 0;  // This and the next: of its last word, a heartbeat or a join.
  absl::Duration word_at;
};

// Wall times at the coordinator; 0: not yet, or not known.
struct PushTimes {
  double sent_unix_s = 0;  // It was told to send: half a round trip after it had asked.
  double arrived_unix_s = 0;
  double applied_unix_s = 0;
  bool quarantined = false;
};

struct RoundTimes {
  v1::Round record;                  // Until it is published: its place alone.
  std::vector<std::string> missing;  // Closed without them.
  std::map<std::string, PushTimes> workers;
};

// Thread-safe.
class RunHistory final : public RunObserver {
 public:
  struct Options {
    size_t points = 400;   // Points per curve; even.
    size_t workers = 256;  // Workers with a curve.
    size_t rounds = 1024;
    Clock* clock = nullptr;  // Outlives the history, as does the next.
    FileSystem* file_system = FileSystem::Real();
    std::string curves_file = {};  // Where the curves are kept.
    std::string run_id = {};
  };
  // The part of the curves that a killed process loses, at most.
  static constexpr absl::Duration kSaveInterval = absl::Seconds(30);

  explicit RunHistory(const Options& options);

  // Before anything else: what the store remembers of past and open rounds.
  void Restore(const RecoveredRun& run);
  // Before anything else: the curves that a former process saved; none if there is no such file.
  // After an error (DATA_LOSS, FAILED_PRECONDITION: of another run or release) the curves are
  // empty.
  absl::Status RestoreCurves();
  // Saves the curves if kSaveInterval has passed. Call it every few seconds. The run does not
  // depend on them: what fails is a warning in the log, once until it works again. Tick and
  // SaveCurves are one thread's.
  void Tick();
  void SaveCurves();

  void OnJoined(const std::string& worker_id) override;
  void OnHeartbeat(const std::string& worker_id, const v1::Heartbeat& heartbeat) override;
  void OnPushBegun(const v1::PushHeader& header) override;
  void OnContributed(const v1::PushHeader& header, bool quarantined) override;
  void OnPublished(const v1::Round& record, const std::vector<std::string>& missing) override;
  void OnApplied(const std::string& worker_id, int fragment, int64_t round) override;

  // Those that this process has heard, by id.
  std::map<std::string, WorkerHeard> Workers() const;
  RunCurves Curves() const;
  std::optional<EvaluationPoint> LastEvaluation() const;
  // The newest `most` of those that are kept, oldest first.
  std::vector<RoundTimes> Rounds(size_t most) const;
  // How long the phases of rounds take, and what came of contributions. `status`: of now.
  //
  //   transfer  a worker was told to send its delta .. the store has it; one sample per delta
  //   collect   the first delta is there .. the round closes
  //   merge     the round closes .. its answer is published
  //   apply     the answer is published .. a worker has it in its copy; one sample per worker
  void AddRoundsTo(MetricPage& page, const v1::RunStatus& status);

 private:
  enum Phase { kTransfer, kCollect, kMerge, kApply, kPhases };

  double UnixSeconds() const {
    return absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch());
  }
  // Makes room for a new one.
  BoundedSeries<ProgressPoint>& CurveOf(const std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddEvaluation(const v1::Evaluation& evaluation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if it is not kept (any more).
  RoundTimes* FindRound(int fragment, int64_t round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes room for a new one.
  RoundTimes& FindOrMakeRound(int fragment, int64_t round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing if one of the two moments is not known.
  void Observe(Phase phase, double from_unix_s, double to_unix_s);

  const Options options_;
  absl::Duration next_save_;  // Monotonic.
  bool save_failed_ = false;
  std::array<prometheus::Histogram, kPhases> phases_;
  mutable absl::Mutex mutex_;
  std::map<std::string, WorkerHeard> heard_ ABSL_GUARDED_BY(mutex_);
  RunCurves curves_ ABSL_GUARDED_BY(mutex_);
  // In the order in which they were first heard of.
  std::deque<RoundTimes> rounds_ ABSL_GUARDED_BY(mutex_);
  int64_t incomplete_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t merged_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t quarantined_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server
