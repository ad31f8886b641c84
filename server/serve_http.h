// The coordinator's HTTP port: health, metrics, the status page.
#ifndef CAUSEWAY_SERVER_SERVE_HTTP_H_
#define CAUSEWAY_SERVER_SERVE_HTTP_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/metrics/process_figures.h"
#include "server/core/coordinator.h"
#include "server/http/http_port.h"
#include "server/http/status_api.h"
#include "server/metrics/coordinator_metrics.h"
#include "server/service/coordinator_server.h"
#include "server/standby/standby_notes.h"

namespace causeway::server {

// Null where there is no port to serve. `address_file` receives HOST:PORT; empty: none. All that is
// referred to outlives the result.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeHttp(
    std::optional<HttpListener> port, const std::string& address_file,
    const Coordinator& coordinator, const CoordinatorServer& server, CoordinatorMetrics& metrics,
    const StatusApi& api, const std::atomic<bool>& stopping);

// The HTTP port of a coordinator that follows: health and metrics of its copy.

// GET /healthz: 200 as long as the process lives, with what it does. GET /readyz: 200 if the copy
// could take over, else 503 with the reason. GET /metrics. Null where there is no port to serve.
// `address_file` receives HOST:PORT; empty: none. `notes` outlive the result.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeStandbyHttp(std::optional<HttpListener> port,
                                                             const std::string& address_file,
                                                             const StandbyNotes& notes,
                                                             const std::string& run_dir,
                                                             const CertificateFiles& certificates);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVE_HTTP_H_
