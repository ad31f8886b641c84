// What a training worker shows of itself to others than its log: events, metrics over HTTP, and
// curves for TensorBoard.
#ifndef CAUSEWAY_WORKER_TELEMETRY_RUN_TELEMETRY_H_
#define CAUSEWAY_WORKER_TELEMETRY_RUN_TELEMETRY_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/http/http_server.h"
#include "common/telemetry/counting_event_log.h"
#include "common/telemetry/event_log.h"
#include "worker/telemetry/tensorboard_writer.h"
#include "worker/telemetry/worker_metrics.h"

namespace causeway::worker {

// Thread-safe, but for Begin, Update and Evaluated, which are the training thread's.
class RunTelemetry {
 public:
  struct Options {
    std::string metrics_address;       // HOST:PORT; empty: no metrics.
    std::string metrics_address_file;  // Receives it once it is served.
    std::string tensorboard;           // Folder for those of all workers; empty: no curves.
    std::string output;                // Folder of this worker: OUTPUT/events.jsonl.
    std::string worker_id;
    std::string cert_file;              // Empty: there is none.
    FileSystem* file_system = nullptr;  // This and the clock outlive the object.
    Clock* clock = nullptr;
  };

  // Serves the metrics, of which there are few yet. Errors are those of HttpListener.
  static absl::StatusOr<std::unique_ptr<RunTelemetry>> Open(Options options);

  // The worker is welcome: from now on there are files. `first_step` is behind it already.
  absl::Status Begin(const std::string& run_id, int64_t budget_steps, int64_t first_step);

  // Events go to the log alone until Begin. Valid as long as this object.
  EventLog& events() { return counter_; }
  void Record(absl::string_view event, const std::string& message, const nlohmann::json& fields) {
    counter_.Record(event, message, fields);
  }

  // After every inner step. Run, worker and budget are filled in here. An error concerns the
  // curves alone.
  absl::Status Update(WorkerFigures figures);
  absl::Status Evaluated(int64_t step, double loss);

  std::string MetricsText() const;

 private:
  // To the log until there is a file.
  class LateEventLog final : public EventLog {
   public:
    void Record(absl::string_view event, const std::string& message,
                const nlohmann::json& fields) override;
    void Open(std::unique_ptr<EventLog> file);

   private:
    absl::Mutex mutex_;
    std::unique_ptr<EventLog> file_ ABSL_GUARDED_BY(mutex_);
  };

  explicit RunTelemetry(Options options);

  const Options options_;
  LateEventLog late_;
  CountingEventLog counter_;
  mutable absl::Mutex mutex_;
  WorkerFigures figures_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TensorBoardWriter> curves_;  // Null: none were asked for.
  std::unique_ptr<HttpServer> http_;           // Last: its handlers use all of the above.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_TELEMETRY_RUN_TELEMETRY_H_
