#include "server/serve_http.h"

#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/metrics/metric_page.h"
#include "common/telemetry/log.h"
#include "server/http/status_page.h"
#include "server/metrics/coordinator_metrics.h"

namespace causeway::server {

absl::StatusOr<std::unique_ptr<HttpServer>> ServeHttp(
    std::optional<HttpListener> port, const std::string& address_file,
    const Coordinator& coordinator, const CoordinatorServer& server, CoordinatorMetrics& metrics,
    const StatusApi& api, const std::atomic<bool>& stopping) {
  if (!port.has_value()) return std::unique_ptr<HttpServer>();
  const std::string address = port->address();
  const std::string warning = port->Warning();
  if (!warning.empty()) Log().warn("{}", warning);
  HttpServer::Options options;
  AddHealthHandlers(coordinator, stopping, options.handlers);
  options.handlers["/metrics"] = [&](const HttpRequest&) {
    HttpResponse response;
    response.content_type = MetricPage::kContentType;
    response.body = metrics.Text(server.GetStatus(), coordinator.Health().ok(), server.load());
    return response;
  };
  AddStatusPage(api, options.handlers);
  ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> http,
                   HttpServer::Start(*std::move(port), std::move(options)));
  Log().info("http://{}/ shows the run, and serves metrics and health", address);
  if (!address_file.empty()) {
    RETURN_IF_ERROR(
        WriteFileAtomically(*FileSystem::Real(), address_file, absl::string_view(address)));
  }
  return http;
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServeStandbyHttp(std::optional<HttpListener> port,
                                                             const std::string& address_file,
                                                             const StandbyNotes& notes,
                                                             const std::string& run_dir,
                                                             const CertificateFiles& certificates) {
  if (!port.has_value()) return std::unique_ptr<HttpServer>();
  const std::string address = port->address();
  const std::string warning = port->Warning();
  if (!warning.empty()) Log().warn("{}", warning);
  HttpServer::Options options;
  options.handlers["/healthz"] = [&notes](const HttpRequest&) {
    return HttpResponse::Text(200, notes.Get().doing);
  };
  options.handlers["/readyz"] = [&notes](const HttpRequest&) {
    const absl::Status ready = notes.Ready();
    return ready.ok() ? HttpResponse::Text(200, notes.Get().doing)
                      : HttpResponse::Text(503, ready.message());
  };
  options.handlers["/metrics"] = [&notes, run_dir, certificates](const HttpRequest&) {
    HttpResponse response;
    response.content_type = MetricPage::kContentType;
    response.body = StandbyMetricsText(notes, *FileSystem::Real(), run_dir, certificates);
    return response;
  };
  ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> http,
                   HttpServer::Start(*std::move(port), std::move(options)));
  Log().info("http://{}/metrics shows how far the copy is", address);
  if (!address_file.empty()) {
    RETURN_IF_ERROR(
        WriteFileAtomically(*FileSystem::Real(), address_file, absl::string_view(address)));
  }
  return http;
}

}  // namespace causeway::server
