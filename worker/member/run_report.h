// A worker's word on its training: heartbeats, log lines, metrics.jsonl, metrics over HTTP, curves
// and a summary. It counts what it tells of: tokens, time, losses.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/client/grpc_exchange.h"
#include "common/client/link.h"
#include "common/client/session.h"
#include "common/identity/certificate.h"
#include "common/rpc/tcp_links.h"
#include "common/telemetry/event_log.h"
#include "nlohmann/json.hpp"
#include "worker/member/joining.h"
#include "worker/member/merge_record.h"
#include "worker/member/run_telemetry.h"
#include "worker/member/wait_watch.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {

// Of an inner step; what is not known is left away.
struct StepFigures {
  std::optional<double> loss;
  std::optional<double> learning_rate;
  std::optional<double> gradient_norm;
};

// Used by the training thread.
class RunReport {
 public:
  // What is reported of the run as it stands.
  struct Standing {
    const StepCounter& counter;
    int64_t end = 0;  // The schedule's end, for now.
    int data_slot = 0;
    const SyncEngine& sync;
    const GrpcExchange& exchange;
    Link& link;
  };

  // All outlive the report.
  RunReport(const MemberOptions& options, const ReachedRun& reached, const FragmentPlan& plan,
            FileSystem& file_system, Clock& clock);

  // Through whom it speaks; they outlive the report.
  void SpeakBy(RunTelemetry* telemetry, Session* session, WaitWatch* wait_watch);
  // A former process had trained so many tokens.
  void Resume(int64_t tokens) { tokens_ = tokens; }
  // The checkpoint of that step is what a successor would continue from; -1: there is none.
  void UseCheckpoint(int64_t step) { checkpoint_step_ = step; }
  // Once the worker has its place: the first heartbeat, and metrics.jsonl, which goes on from that
  // of a former process unless the worker began `anew`.
  absl::Status Begin(const Standing& now, bool anew);

  // Training begins now, after evaluations: what rates and utilization are counted from.
  void StartClock();
  // Training has ended.
  void StopClock(int64_t step);
  void CountStep(int64_t tokens, absl::Duration time);
  void CountEvaluation(absl::Duration time) { evaluation_ += time; }

  // After an inner step.
  void Step(const Standing& now, const StepFigures& figures);
  // `loss`: held-out, of the published parameters.
  void Evaluated(int64_t step, double loss);
  // The state of that step is safe: says so.
  void CheckpointWritten(int64_t step);
  // Training waits for that answer from now on; nothing: it goes on.
  void Waiting(int64_t step, const std::optional<SyncEvent>& event);
  // A line of metrics.jsonl; nothing without an output folder.
  absl::Status Append(nlohmann::json line);
  // Of this worker, when it has finished.
  nlohmann::json Summary(const Standing& now) const;

  // The system's buffers: warns once if they are what limits the link.
  void UseBuffers(const SocketBuffers& buffers) { socket_buffers_ = buffers; }
  void JudgeBuffers(const v1::LinkReport& link);

  int64_t tokens() const { return tokens_; }
  int64_t first_step() const { return first_step_; }
  int64_t checkpoint_step() const { return checkpoint_step_; }

 private:
  absl::Status OpenMetrics(const Standing& now, bool anew);
  // Training goes on without it.
  void AppendIfPossible(nlohmann::json line);
  void LogProgress(const Standing& now, absl::Duration time);
  // To metrics over HTTP and the curves.
  void ShowFigures(const Standing& now, const StepFigures& figures);
  void WatchCertificate();
  double Utilization() const;

  const MemberOptions& options_;
  const ReachedRun& reached_;
  const FragmentPlan& plan_;
  FileSystem& file_system_;
  Clock& clock_;
  ExpiryWatch expiry_;
  RunTelemetry* telemetry_ = nullptr;
  Session* session_ = nullptr;
  WaitWatch* wait_watch_ = nullptr;
  std::unique_ptr<JsonLinesFile> metrics_;  // Null without an output folder.
  v1::Heartbeat heartbeat_;                 // The last one that the session was given.
  int64_t first_step_ = 0;                  // Belongs to this process, as the next four do.
  int64_t first_tokens_ = 0;
  int64_t inner_steps_ = 0;
  absl::Duration compute_ = absl::ZeroDuration();
  absl::Duration evaluation_ = absl::ZeroDuration();
  int64_t tokens_ = 0;                                     // Trained by this worker in the run.
  absl::Duration inner_step_time_ = absl::ZeroDuration();  // Smoothed; zero: not known yet.
  absl::Duration step_time_ = absl::ZeroDuration();        // Duration of the last inner step.
  int64_t step_tokens_ = 0;
  int64_t checkpoint_step_ = -1;
  absl::Status appended_;       // The last line of the metrics.
  std::optional<double> loss_;  // The last.
  std::optional<double> initial_eval_loss_;
  std::optional<double> eval_loss_;
  double tokens_per_second_ = 0;  // Over the last seconds.
  absl::Duration start_;          // Monotonic, when the clock was started.
  // Time of the training phase, evaluations excepted; zero if no step was trained.
  absl::Duration wall_ = absl::ZeroDuration();
  absl::Duration last_line_;
  int64_t last_line_tokens_ = 0;
  std::optional<SocketBuffers> socket_buffers_;  // None: not known, or warned about.
};

}  // namespace causeway::worker
