// A training worker's word to others than its log: events, metrics over HTTP, and curves for
// TensorBoard.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/tensorboard/event.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/http_server.h"
#include "common/telemetry/metric_page.h"
#include "worker/member/joining.h"

namespace causeway::worker {

// Curves for TensorBoard: a file of scalars that `tensorboard --logdir` reads, also while it grows.
//
// The file is a sequence of records in TensorFlow's framing, all numbers little endian:
//   uint64 length | uint32 masked CRC-32C of those 8 bytes | data | uint32 masked CRC-32C of data
// where masked(c) = rotate_right(c, 15) + 0xa282ead8, and data is an Event
// (proto/causeway/tensorboard/event.proto).

uint32_t Crc32c(std::span<const uint8_t> bytes);
// One record of the framing above.
std::string TensorBoardRecord(absl::string_view data);

// Not thread-safe.
class TensorBoardWriter {
 public:
  // {"train/loss", 2.5}
  using Scalars = std::vector<std::pair<std::string, double>>;

  // Creates `folder` and in it a new file, events.out.tfevents.SECONDS.WORKER, beside those of
  // former processes. What they say of steps from `first_step` on is void, since it is trained
  // again. The clock outlives the writer.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Create(FileSystem& file_system,
                                                                   const std::string& folder,
                                                                   const std::string& worker_id,
                                                                   int64_t first_step,
                                                                   const Clock& clock);

  // One event with all of them. What is not finite is left out.
  absl::Status Add(int64_t step, const Scalars& scalars);

  const std::string& path() const { return path_; }

 private:
  TensorBoardWriter(std::unique_ptr<WritableFile> file, std::string path, const Clock& clock)
      : file_(std::move(file)), path_(std::move(path)), clock_(clock) {}
  absl::Status Write(tensorboard::Event event);

  const std::unique_ptr<WritableFile> file_;
  const std::string path_;
  const Clock& clock_;
};

// A worker's answer to GET /metrics.

// As of the last inner step.
struct WorkerFigures {
  std::string run_id;
  std::string worker_id;
  int64_t budget_steps = 0;
  int data_slot = 0;
  v1::Heartbeat heartbeat;
  double utilization = 0;  // Compute by wall time, evaluations excepted.
  double evaluation_seconds = 0;
  int64_t rounds_merged = 0;
  int64_t rounds_late = 0;
  // The inner optimizer's; empty where the coordinator has the optimizer.
  std::optional<double> learning_rate;
  std::optional<double> gradient_norm;
  std::optional<double> eval_loss;  // Set on the worker that evaluates.
};

// GET /healthz asks whether this process should be started anew: 503 once a step computes for
// kStuckAfter and kStuckSteps times as long as usual (not the first two of a process), which is a
// device or a disk that hangs. Whatever waits for others, such as an answer or a coordinator that
// is away, is well. GET /readyz: 200 while the worker takes part in the run; 503 before it is
// welcome and while its stream is broken.
//
// Thread-safe, but for Begin, Update and Evaluated, which are the training thread's.
class RunTelemetry {
 public:
  static constexpr absl::Duration kStuckAfter = absl::Minutes(10);
  static constexpr double kStuckSteps = 30;

  // Serves the metrics, of which there are few yet. Errors are those of HttpListener. File system
  // and clock outlive the object.
  static absl::StatusOr<std::unique_ptr<RunTelemetry>> Open(const MemberOptions& options,
                                                            FileSystem& file_system, Clock& clock);

  // The worker is welcome: from now on there are files. `first_step` is behind it already.
  absl::Status Begin(const std::string& run_id, int64_t budget_steps, int64_t first_step);

  // Events go to the log alone until Begin. Valid as long as this object.
  EventLog& events() { return events_; }
  void Record(absl::string_view event, const std::string& message, const nlohmann::json& fields) {
    events_.Record(event, message, fields);
  }

  // After every inner step. Run, worker and budget are filled in here. An error concerns the
  // curves alone.
  absl::Status Update(WorkerFigures figures);
  // Around what an inner step computes.
  void StepBegins(int64_t step);
  void StepEnds();
  // Sets what the metrics say of it until the next Update. Any thread.
  void SetStepsBeforeWait(int64_t steps);
  // Whether the session's stream stands.
  void SetAttached(bool attached);

  absl::Status Evaluated(int64_t step, double loss);

  std::string MetricsText() const;

 private:
  struct StepUnderWay {
    int64_t step = 0;
    absl::Duration since;  // Monotonic.
  };

  RunTelemetry(const MemberOptions& options, FileSystem& file_system, Clock& clock);
  HttpResponse Health() const;
  HttpResponse Readiness() const;

  const MemberOptions options_;
  FileSystem& file_system_;
  Clock& clock_;
  EventFile events_;
  mutable absl::Mutex mutex_;
  WorkerFigures figures_ ABSL_GUARDED_BY(mutex_);
  std::optional<StepUnderWay> computing_ ABSL_GUARDED_BY(mutex_);
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;  // Has been attached.
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<TensorBoardWriter> curves_;  // Null: none were asked for.
  std::unique_ptr<HttpServer> http_;           // Last: its handlers use all of the above.
};

}  // namespace causeway::worker
