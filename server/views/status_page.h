// The status page and what it reads, as handlers of the coordinator's HTTP port:
//
//   /  /assets/NAME                                       the page
//   /api/v1/status  workers  rounds?most=N  series        JSON, see StatusApi
//   /api/v1/events?after=N
//   /api/v1/config                                        a textproto
//   /report.html                                          the run as it is, to be saved
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/admin.pb.h"
#include "common/base/clock.h"
#include "common/telemetry/http_server.h"
#include "nlohmann/json.hpp"
#include "server/core/served_run.h"
#include "server/views/event_history.h"
#include "server/views/run_history.h"

namespace causeway::server {

// A run as JSON, for the status page and other programs. docs/operating.md lists the fields.
//
// Times are seconds since 1970 by the coordinator's clock, null where something has not happened or
// is not known. Text comes as workers wrote it: whoever shows it escapes it.
//
// Thread-safe.
class StatusApi {
 public:
  struct Options {
    const ServedRun* run = nullptr;  // All of them outlive the object.
    const RunHistory* history = nullptr;
    const EventHistory* events = nullptr;
    const Clock* clock = nullptr;
    // The coordinator's status, with what else is known of its workers' links.
    std::function<v1::RunStatus()> status;
  };

  explicit StatusApi(Options options);

  // The run, its budget, and bytes against data parallelism.
  nlohmann::json Status() const;
  nlohmann::json Workers() const;
  // Fragments with their open rounds, and the newest `most` rounds that are kept.
  nlohmann::json Rounds(size_t most) const;
  // Every worker's curve, and the losses on held-out text.
  nlohmann::json Series() const;
  // Those after that number.
  nlohmann::json Events(int64_t after) const;
  // The run's configuration as a textproto.
  std::string Config() const;

 private:
  double Now() const;

  const Options options_;
  const double started_unix_s_;
};

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
