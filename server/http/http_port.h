// The coordinator's HTTP port: where it is, and what is served there whatever else is.
#ifndef CAUSEWAY_SERVER_HTTP_HTTP_PORT_H_
#define CAUSEWAY_SERVER_HTTP_HTTP_PORT_H_

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "server/core/served_run.h"

namespace causeway::server {

// As --http asks for it: HOST:PORT; "off"; or "auto", which is 127.0.0.1:7071, another free port if
// that is taken, and nothing where gRPC's clients have to show who they are (`restricted`): what
// they may not read there would be open to every user of this machine here. "auto" never fails.
absl::StatusOr<std::optional<HttpListener>> OpenHttpPort(const std::string& flag, bool restricted);

// GET /healthz: 200 while rounds can close, 503 with the reason once the store or the training has
// failed. GET /readyz: the same, and 503 also while the coordinator saves its state to stop: it
// takes no workers any more. Both arguments outlive the handlers.
void AddHealthHandlers(const ServedRun& run, const std::atomic<bool>& stopping,
                       HttpHandlers& handlers);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_HTTP_HTTP_PORT_H_
