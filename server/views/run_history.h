// A run's recent past, for the status page: the workers' curves, and when every delta of every
// round was sent, arrived, merged, published and applied.
//
// All of it is in memory and bounded, whatever workers say and however long the run takes. It is
// not part of the run's state: a coordinator that takes a run over knows the past rounds from the
// store (Restore), and the curves as they were saved last (SaveCurves, RestoreCurves).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/record.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "server/core/coordinator.h"
#include "server/store/store.h"
#include "server/views/run_curves.h"

namespace causeway::server {

struct WorkerHeard {
  std::string worker_id;
  v1::Heartbeat heartbeat;  // The last one.
  double heard_unix_s = 0;
  double heard_seconds_ago = 0;
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
    size_t points = 400;  // Points per curve; even.
    size_t workers = 256;
    size_t rounds = 1024;
    Clock* clock = nullptr;  // Outlives the history.
  };

  explicit RunHistory(const Options& options);

  // Before anything else: what the store remembers of past and open rounds.
  void Restore(const RecoveredRun& run);

  void OnHeartbeat(const std::string& worker_id, const v1::Heartbeat& heartbeat) override;
  void OnPushBegun(const v1::PushHeader& header) override;
  void OnContributed(const v1::PushHeader& header, bool quarantined) override;
  void OnPublished(const v1::Round& record, const std::vector<std::string>& missing) override;
  void OnApplied(const std::string& worker_id, int fragment, int64_t round) override;

  // For a successor. Errors are those of the file system; what stood at `path` stands then.
  absl::Status SaveCurves(FileSystem& file_system, const std::string& path,
                          const std::string& run_id) const;
  // Before anything else: those that a former process saved; nothing if there is no such file.
  // After an error (DATA_LOSS, FAILED_PRECONDITION: of another run or release) the curves are
  // empty.
  absl::Status RestoreCurves(FileSystem& file_system, const std::string& path,
                             const std::string& run_id);

  // Those that this process has heard, by id.
  std::vector<WorkerHeard> Workers() const;
  // By id; longer than all else that is kept.
  std::vector<WorkerCurve> Curves() const;
  // By step.
  std::vector<EvaluationPoint> Evaluations() const;
  // One that is kept; else nothing is known in it.
  RoundTimes Round(int fragment, int64_t round);
  // The newest `most` of those that are kept, oldest first.
  std::vector<RoundTimes> Rounds(size_t most) const;

 private:
  struct Worker {
    explicit Worker(BoundedSeries<ProgressPoint> past) : series(std::move(past)) {}
    v1::Heartbeat heartbeat;
    double unix_s = 0;                            // 0: this process has not heard it.
    absl::Duration heard = absl::ZeroDuration();  // Monotonic.
    BoundedSeries<ProgressPoint> series;
  };

  double UnixSeconds() const {
    return absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch());
  }
  Worker& FindOrMakeWorker(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddEvaluation(const v1::Evaluation& evaluation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if it is not kept (any more).
  RoundTimes* FindRound(int fragment, int64_t round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes room for a new one.
  RoundTimes& FindOrMakeRound(int fragment, int64_t round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);
  BoundedSeries<EvaluationPoint> evaluations_ ABSL_GUARDED_BY(mutex_);
  // In the order in which they were first heard of.
  std::deque<RoundTimes> rounds_ ABSL_GUARDED_BY(mutex_);
};

// Keeps the curves of a run in its folder, so that the status page of a successor begins with them.

// The run does not depend on them: what fails is a warning in the log, once until it works again.
// Not thread-safe.
class CurveKeeper {
 public:
  // The part of the curves that a killed process loses, at most.
  static constexpr absl::Duration kInterval = absl::Seconds(30);

  // All but the strings outlive the keeper.
  CurveKeeper(RunHistory* history, FileSystem* file_system, Clock* clock, std::string path,
              std::string run_id)
      : history_(history),
        file_system_(file_system),
        clock_(clock),
        path_(std::move(path)),
        run_id_(std::move(run_id)),
        next_save_(clock->Monotonic() + kInterval) {}

  // Reads the curves that a former process left.
  void Restore();
  // Saves if kInterval has passed. Call it every few seconds.
  void Tick();
  void Save();

 private:
  RunHistory* const history_;
  FileSystem* const file_system_;
  Clock* const clock_;
  const std::string path_;
  const std::string run_id_;
  absl::Duration next_save_;  // Monotonic.
  bool failed_ = false;
};

}  // namespace causeway::server
