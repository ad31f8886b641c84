// The HTTP port of a coordinator that follows: health and metrics of its copy.
#ifndef CAUSEWAY_SERVER_STANDBY_HTTP_H_
#define CAUSEWAY_SERVER_STANDBY_HTTP_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "common/metrics/process_figures.h"
#include "server/standby/standby_notes.h"

namespace causeway::server {

// GET /healthz: 200 as long as the process lives, with what it does. GET /readyz: 200 if the copy
// could take over, else 503 with the reason. GET /metrics. Null where there is no port to serve.
// `address_file` receives HOST:PORT; empty: none. `notes` outlive the result.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeStandbyHttp(std::optional<HttpListener> port,
                                                             const std::string& address_file,
                                                             const StandbyNotes& notes,
                                                             const std::string& run_dir,
                                                             const CertificateFiles& certificates);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STANDBY_HTTP_H_
