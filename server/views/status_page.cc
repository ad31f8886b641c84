#include "server/views/status_page.h"

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/files/json.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

constexpr int64_t kDefaultRounds = 200;
constexpr int64_t kMostRounds = 1024;

HttpResponse Json(const nlohmann::json& content) {
  HttpResponse response;
  response.content_type = "application/json";
  response.body = JsonText(content) + "\n";
  return response;
}

absl::string_view ContentType(absl::string_view name) {
  if (absl::EndsWith(name, ".html")) return "text/html; charset=utf-8";
  if (absl::EndsWith(name, ".css")) return "text/css; charset=utf-8";
  if (absl::EndsWith(name, ".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

HttpHandler FileHandler(absl::string_view name, absl::string_view content) {
  HttpResponse file;
  file.content_type = std::string(ContentType(name));
  file.body = std::string(content);
  file.etag = absl::StrCat("\"",
                           HashToHex(TreeHash(std::span(
                               reinterpret_cast<const uint8_t*>(content.data()), content.size()))),
                           "\"");
  file.cache_control = "no-cache";  // Kept, and asked for again: another release has others.
  return [file = std::move(file)](const HttpRequest&) { return file; };
}

// The parameter, or `otherwise` where it is absent. INVALID_ARGUMENT for anything but a number from
// `least` to `most`.
absl::StatusOr<int64_t> Number(const HttpRequest& request, const std::string& name, int64_t least,
                               int64_t most, int64_t otherwise) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return otherwise;
  int64_t value = 0;
  if (absl::SimpleAtoi(found->second, &value) && value >= least && value <= most) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be a whole number from ", least, " to ", most));
}

HttpResponse Refuse(const absl::Status& status) {
  return HttpResponse::Text(400, status.message());
}

}  // namespace

void AddStatusPage(const StatusApi& api, HttpHandlers& handlers) {
  for (const auto& [name, content] : EmbeddedPage()) {
    const bool is_page = name == "index.html";
    handlers[is_page ? "/" : absl::StrCat("/assets/", name)] = FileHandler(name, content);
  }
  handlers["/api/v1/status"] = [&api](const HttpRequest&) { return Json(api.Status()); };
  handlers["/api/v1/workers"] = [&api](const HttpRequest&) { return Json(api.Workers()); };
  handlers["/api/v1/series"] = [&api](const HttpRequest&) { return Json(api.Series()); };
  handlers["/api/v1/rounds"] = [&api](const HttpRequest& request) {
    const absl::StatusOr<int64_t> most = Number(request, "most", 1, kMostRounds, kDefaultRounds);
    return most.ok() ? Json(api.Rounds(static_cast<size_t>(*most))) : Refuse(most.status());
  };
  handlers["/api/v1/events"] = [&api](const HttpRequest& request) {
    const absl::StatusOr<int64_t> after = Number(request, "after", 0, INT64_MAX, 0);
    return after.ok() ? Json(api.Events(*after)) : Refuse(after.status());
  };
  handlers["/report.html"] = [&api](const HttpRequest&) {
    HttpResponse response;
    response.content_type = "application/octet-stream";  // This port lets no script in a page run.
    response.body = ReportPage(api, /*stopped=*/false);
    return response;
  };
  handlers["/api/v1/config"] = [&api](const HttpRequest&) {
    HttpResponse response;
    response.body = api.Config();
    return response;
  };
}

std::string ReportPage(const StatusApi& api, bool stopped) {
  const std::map<std::string, absl::string_view>& files = EmbeddedPage();
  const std::string answers = JsonText({{"stopped", stopped},
                                        {"status", api.Status()},
                                        {"workers", api.Workers()},
                                        {"rounds", api.Rounds(kMostRounds)},
                                        {"series", api.Series()},
                                        {"events", api.Events(0)},
                                        {"config", api.Config()}});
  return absl::StrReplaceAll(
      files.at("index.html"),
      {{"<title>",
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
        "'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n<title>"},
       {"assets/icon.svg",
        absl::StrCat("data:image/svg+xml;base64,", absl::Base64Escape(files.at("icon.svg")))},
       {"<link rel=\"stylesheet\" href=\"assets/style.css\">",
        absl::StrCat("<style>\n", files.at("style.css"), "</style>")},
       {"<script src=\"assets/chart.js\" defer></script>",
        absl::StrCat("<script>\n", files.at("chart.js"), "</script>")},
       {"<script type=\"module\" src=\"assets/app.js\"></script>",
        // No text ends the element: in JSON "<" stands in strings alone.
        absl::StrCat("<script type=\"application/json\" id=\"answers\">",
                     absl::StrReplaceAll(answers, {{"<", "\\u003c"}}),
                     "</script>\n<script type=\"module\">\n", files.at("app.js"), "</script>")}});
}

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
