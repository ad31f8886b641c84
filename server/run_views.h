// What shows a coordinator to people and programs: its HTTP port, its history, its report.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/http_server.h"
#include "common/telemetry/metric_page.h"
#include "server/core/served_run.h"
#include "server/opened_run.h"
#include "server/service/coordinator_server.h"
#include "server/standby/standbys.h"
#include "server/views/coordinator_metrics.h"
#include "server/views/event_history.h"
#include "server/views/run_history.h"
#include "server/views/status_page.h"

namespace causeway::server {

// A run that is served: what it was, what befalls it, its metrics, status page and report.
class RunViews {
 public:
  // Reads what former processes left. `run` and `standbys` outlive the result.
  static absl::StatusOr<std::unique_ptr<RunViews>> Open(const std::string& run_dir,
                                                        const OpenedRun& run,
                                                        const Standbys& standbys,
                                                        const CertificateFiles& certificates);

  EventHistory& events() { return events_; }
  // For Coordinator::Options::observers.
  std::vector<RunObserver*> observers() { return {&history_}; }
  // Serves health, metrics and the status page, if there is a port; the file of
  // --http_address_file receives HOST:PORT. Both arguments outlive the object.
  absl::Status Serve(std::optional<HttpListener> port, const ServedRun& run,
                     const CoordinatorServer& server);
  // Keeps the curves. Every now and then.
  void Tick() { history_.Tick(); }
  // GET /readyz says that the coordinator takes no workers any more.
  void NoteStopping() { stopping_ = true; }
  // The coordinator has stopped, as `why` says: writes the curves, the event and the report, and
  // serves no more. Comes after Serve.
  void Close(const absl::Status& why);

 private:
  RunViews(const std::string& run_dir, const OpenedRun& run, const Standbys& standbys,
           const CertificateFiles& certificates);

  const std::string run_dir_;
  // What this process knows of a run that was over before it is less than its report has.
  bool keeps_report_ = false;
  EventFile event_file_;
  EventHistory events_;
  RunHistory history_;
  CoordinatorMetrics metrics_;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<StatusApi> api_;  // Once it serves, as the next.
  std::unique_ptr<HttpServer> http_;
};

// The HTTP port of a coordinator that follows: health and metrics of its copy.

// GET /healthz: 200 as long as the process lives, with what it does. GET /readyz: 200 if the copy
// could take over, else 503 with the reason. GET /metrics. Null where there is no port to serve.
// The file of --http_address_file receives HOST:PORT. `notes` outlive the result.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeStandbyHttp(std::optional<HttpListener> port,
                                                             const StandbyNotes& notes,
                                                             const std::string& run_dir,
                                                             const CertificateFiles& certificates);

}  // namespace causeway::server
