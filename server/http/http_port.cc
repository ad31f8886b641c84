#include "server/http/http_port.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

constexpr char kUsualAddress[] = "127.0.0.1:7071";
constexpr char kAnyAddress[] = "127.0.0.1:0";

}  // namespace

absl::StatusOr<std::optional<HttpListener>> OpenHttpPort(const std::string& flag, bool restricted) {
  if (flag == "off" || (flag == "auto" && restricted)) return std::optional<HttpListener>();
  if (flag == "auto") {
    absl::StatusOr<HttpListener> listener = HttpListener::Open(kUsualAddress);
    if (!listener.ok()) listener = HttpListener::Open(kAnyAddress);
    if (listener.ok()) return std::optional<HttpListener>(*std::move(listener));
    Log().warn("no status page and no metrics: {}", std::string(listener.status().message()));
    return std::optional<HttpListener>();
  }
  absl::StatusOr<HttpListener> listener = HttpListener::Open(flag);
  if (!listener.ok()) {
    return Annotate(listener.status(), "--http (HOST:PORT, auto or off)");
  }
  return std::optional<HttpListener>(*std::move(listener));
}

void AddHealthHandlers(const ServedRun& run, const std::atomic<bool>& stopping,
                       HttpHandlers& handlers) {
  const auto health = [&run](const HttpRequest&) {
    const absl::Status status = run.Health();
    return status.ok() ? HttpResponse::Text(200, "ok") : HttpResponse::Text(503, status.message());
  };
  handlers["/healthz"] = health;
  handlers["/readyz"] = [health, &stopping](const HttpRequest& request) {
    return stopping ? HttpResponse::Text(503, "the coordinator is stopping") : health(request);
  };
}

}  // namespace causeway::server
