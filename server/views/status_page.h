// The status page and what it reads, as handlers of the coordinator's HTTP port:
//
//   /  /assets/NAME                                       the page
//   /api/v1/status  workers  rounds?most=N  series        JSON, see status_api.h
//   /api/v1/events?after=N
//   /api/v1/config                                        a textproto
//   /report.html                                          the run as it is, to be saved
#ifndef CAUSEWAY_SERVER_VIEWS_STATUS_PAGE_H_
#define CAUSEWAY_SERVER_VIEWS_STATUS_PAGE_H_

#include <atomic>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/http_server.h"
#include "server/core/served_run.h"
#include "server/views/status_api.h"

namespace causeway::server {

// The coordinator's HTTP port: where it is, and what is served there whatever else is.

// As --http asks for it: HOST:PORT; "off"; or "auto", which is 127.0.0.1:7071, another free port if
// that is taken, and nothing where gRPC's clients have to show who they are (`restricted`): what
// they may not read there would be open to every user of this machine here. "auto" never fails.
absl::StatusOr<std::optional<HttpListener>> OpenHttpPort(const std::string& flag, bool restricted);

// GET /healthz: 200 while rounds can close, 503 with the reason once the store or the training has
// failed. GET /readyz: the same, and 503 also while the coordinator saves its state to stop: it
// takes no workers any more. Both arguments outlive the handlers.
void AddHealthHandlers(const ServedRun& run, const std::atomic<bool>& stopping,
                       HttpHandlers& handlers);

// The API outlives the handlers.
void AddStatusPage(const StatusApi& api, HttpHandlers& handlers);

// The page as one file that opens from a disk, with what the API answers now inside, as JSON in the
// element `answers`. stopped: the coordinator has, so this is what it leaves.
std::string ReportPage(const StatusApi& api, bool stopped);

// The files of the status page, which the build puts into the program (embed.cmake). app.js is all
// of the page's modules.

// By name: "index.html", "app.js", "chart.js", ...
const std::map<std::string, absl::string_view>& EmbeddedPage();

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_VIEWS_STATUS_PAGE_H_
