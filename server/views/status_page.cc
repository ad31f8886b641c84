#include "server/views/status_page.h"

#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/files/json.h"
#include "common/params/run_config.h"
#include "common/params/sync_schedule.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "server/core/coordinator.h"
#include "server/views/status_text.h"

namespace causeway::server {
namespace {

using nlohmann::json;

// bf16, in which data parallelism would exchange gradients.
constexpr double kGradientBytes = 2;

json Rounded(double value, double scale) { return std::round(value * scale) / scale; }

// A wall time, to the millisecond.
json Time(double unix_s) { return unix_s > 0 ? Rounded(unix_s, 1e3) : json(); }

// Five digits, which is more than a chart shows.
json Figure(double value) {
  if (!std::isfinite(value)) return json();
  if (value == 0) return 0;
  const double scale = std::pow(10, 4 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(scale) && scale > 0 ? Rounded(value, scale) : json(value);
}

json Figure(const Mean& mean) {
  const std::optional<double> value = mean.value();
  return value.has_value() ? Figure(*value) : json();
}

// Zero stands in a worker's message for what it leaves out.
json Known(double value) { return value > 0 ? Figure(value) : json(); }

const char* RunStateName(const v1::RunStatus& status, const absl::Status& health) {
  if (!health.ok()) return "failed";
  if (status.finished()) return "finished";
  if (!status.started()) return "waiting";
  return status.paused() ? "paused" : "training";
}

// Bytes moved, and those that gradients in bf16 at every step would have moved: up and down, by
// every worker, for the steps that it trained.
json Bytes(const v1::RunStatus& status, int64_t parameters) {
  const double tokens_per_step = static_cast<double>(status.config().train().batch_sequences()) *
                                 static_cast<double>(status.config().model().sequence_length());
  double up = 0;
  double down = 0;
  double steps = 0;
  for (const v1::WorkerStatus& worker : status.workers()) {
    up += static_cast<double>(worker.bytes_up());
    down += static_cast<double>(worker.bytes_down());
    if (tokens_per_step > 0) steps += static_cast<double>(worker.tokens()) / tokens_per_step;
  }
  const double data_parallel = 2 * kGradientBytes * static_cast<double>(parameters) * steps;
  return {{"up", up},
          {"down", down},
          {"data_parallel", std::round(data_parallel)},
          {"times_fewer", up + down > 0 ? Known(data_parallel / (up + down)) : json()}};
}

json SitesJson(const v1::WorkerStatus& worker) {
  json sites = json::array();
  for (const v1::SiteReport& site : worker.sites()) {
    sites.push_back({{"id", site.worker_id()},
                     {"step", site.step()},
                     {"tokens", site.tokens()},
                     {"tokens_per_second", Known(site.tokens_per_second())},
                     {"train_loss", Known(site.train_loss())},
                     {"utilization", Known(site.compute_utilization())}});
  }
  return sites;
}

// `heard`: null if this process has not heard it. `now`: monotonic.
json WorkerJson(const v1::WorkerStatus& worker, const WorkerHeard* heard, absl::Duration now) {
  const v1::LinkReport& link = worker.link();
  json result = {
      {"id", worker.worker_id()},
      {"state", WorkerStateName(worker.state())},
      {"device", worker.device()},
      {"version", worker.software_version()},
      {"data_slot", worker.data_slot()},
      {"incarnation", worker.incarnation()},
      {"step", worker.step()},
      {"tokens", worker.tokens()},
      {"tokens_per_second", Known(worker.tokens_per_second())},
      {"train_loss", Known(worker.train_loss())},
      {"utilization", Known(worker.compute_utilization())},
      {"pace", Figure(worker.pace())},
      {"late_answers", worker.late_answers()},
      {"steps_before_wait",
       worker.has_steps_before_wait() ? json(worker.steps_before_wait()) : json()},
      {"step_seconds", Known(worker.step_seconds())},
      {"bytes_up", worker.bytes_up()},
      {"bytes_down", worker.bytes_down()},
      {"up_bytes_per_second", Known(link.goodput_up_bytes_per_second())},
      {"down_bytes_per_second", Known(link.goodput_down_bytes_per_second())},
      {"rtt_seconds", Known(link.rtt_seconds() > 0 ? link.rtt_seconds()
                                                   : worker.coordinator_link().rtt_seconds())},
      {"connections", link.connections()},
      {"resent_chunks", link.resent_chunks()},
      {"resumes", link.resumes()},
      {"sites", SitesJson(worker)},
      {"heard_unix_s", nullptr},
      {"heard_seconds_ago", nullptr},
      {"checkpoint_step", nullptr}};
  if (heard == nullptr) return result;
  result["heard_unix_s"] = Time(heard->unix_s);
  result["heard_seconds_ago"] = Rounded(absl::ToDoubleSeconds(now - heard->word_at), 1e3);
  const int64_t checkpoint = heard->heartbeat.checkpoint_step();
  if (checkpoint >= 0) result["checkpoint_step"] = checkpoint;
  return result;
}

json RoundJson(const RoundTimes& round) {
  json workers = json::array();
  for (const auto& [id, push] : round.workers) {
    workers.push_back({{"id", id},
                       {"sent", Time(push.sent_unix_s)},
                       {"arrived", Time(push.arrived_unix_s)},
                       {"applied", Time(push.applied_unix_s)},
                       {"quarantined", push.quarantined}});
  }
  const v1::Round& record = round.record;
  return {{"fragment", record.fragment()},
          {"round", record.round()},
          {"send_step", record.send_step()},
          {"closed", Time(record.closed_unix_s())},
          {"published", Time(record.published_unix_s())},
          {"bytes_in", record.bytes_in()},
          {"bytes_out", record.bytes_out()},
          {"reason", record.reason()},
          {"missing", round.missing},
          {"workers", std::move(workers)}};
}

}  // namespace

StatusApi::StatusApi(Options options)
    : options_(std::move(options)),
      started_unix_s_(absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch())) {}

double StatusApi::Now() const {
  return absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch());
}

json StatusApi::Status() const {
  const v1::RunStatus status = options_.status();
  const v1::RunConfig& config = status.config();
  const absl::Status health = options_.run->Health();
  const int64_t parameters =
      options_.run->coordinator() == nullptr ? 0 : options_.run->coordinator()->plan().parameters();
  const std::optional<absl::Duration> left = TimeLeft(status);
  int64_t rounds = 0;
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    rounds += fragment.published_version();
  }
  json held_out = nullptr;
  if (const std::optional<EvaluationPoint> last = options_.history->LastEvaluation()) {
    held_out = {{"step", last->step}, {"loss", Figure(last->loss)}};
  }
  return {{"now", Time(Now())},
          {"coordinator",
           {{"started", Time(started_unix_s_)},
            {"version", kSoftwareVersion},
            {"problem", health.ok() ? json() : json(std::string(health.message()))}}},
          {"run",
           {{"id", status.run_id()},
            {"name", config.run_name()},
            {"state", RunStateName(status, health)},
            {"mode", std::string(RunMode(config.sync()))},
            {"parameters", parameters},
            {"step", status.run_step()},
            {"steps", config.train().steps()},
            {"tokens", status.tokens()},
            {"token_budget", config.train().tokens()},
            {"seconds_left", left.has_value() ? Rounded(absl::ToDoubleSeconds(*left), 1) : json()},
            {"held_out", std::move(held_out)},
            {"rounds", rounds},
            {"fragments", status.fragments_size()},
            {"steps_between_syncs", config.sync().steps_between_syncs()},
            {"overlap_steps", config.sync().overlap_steps()},
            {"max_overlap_steps", MaxOverlapSteps(config.sync())},
            {"codec_up", v1::Codec_Name(config.sync().codec_up())},
            {"codec_down", v1::Codec_Name(config.sync().codec_down())},
            {"start_workers", config.membership().start_workers()},
            {"max_workers", config.membership().max_workers()},
            {"lease_seconds", static_cast<double>(config.membership().lease_ms()) / 1000}}},
          {"bytes", Bytes(status, parameters)}};
}

json StatusApi::Workers() const {
  const v1::RunStatus status = options_.status();
  const std::map<std::string, WorkerHeard> heard = options_.history->Workers();
  const absl::Duration now = options_.clock->Monotonic();
  json workers = json::array();
  for (const v1::WorkerStatus& worker : status.workers()) {
    const auto found = heard.find(worker.worker_id());
    workers.push_back(WorkerJson(worker, found == heard.end() ? nullptr : &found->second, now));
  }
  return {{"now", Time(Now())}, {"workers", std::move(workers)}};
}

json StatusApi::Rounds(size_t most) const {
  const v1::RunStatus status = options_.status();
  json fragments = json::array();
  for (const v1::FragmentStatus& fragment : status.fragments()) {
    const int64_t round = fragment.published_version() + 1;
    fragments.push_back(
        {{"fragment", fragment.fragment()},
         {"values", fragment.values()},
         {"round", round},
         {"send_step",
          SyncSchedule(status.fragments_size(), status.config().sync().steps_between_syncs(),
                       status.config().sync().overlap_steps())
              .SendStep(fragment.fragment(), round)},
         {"contributed", json(std::vector<std::string>(fragment.contributed().begin(),
                                                       fragment.contributed().end()))},
         {"quarantined", json(std::vector<std::string>(fragment.quarantined().begin(),
                                                       fragment.quarantined().end()))},
         {"waiting_for", fragment.waiting_for()}});
  }
  json rounds = json::array();
  for (const RoundTimes& round : options_.history->Rounds(most)) {
    rounds.push_back(RoundJson(round));
  }
  return {{"now", Time(Now())}, {"fragments", std::move(fragments)}, {"rounds", std::move(rounds)}};
}

json StatusApi::Series() const {
  json workers = json::array();
  const RunCurves curves = options_.history->Curves();
  for (const auto& [id, curve] : curves.workers) {
    json columns = {{"id", id}};
    for (const char* const name : {"time", "step", "train_loss", "tokens_per_second", "utilization",
                                   "up_bytes_per_second", "down_bytes_per_second"}) {
      columns[name] = json::array();
    }
    for (const ProgressPoint& point : curve.points()) {
      columns["time"].push_back(Time(point.unix_s));
      columns["step"].push_back(point.step);
      columns["train_loss"].push_back(Figure(point.train_loss));
      columns["tokens_per_second"].push_back(Figure(point.tokens_per_second));
      columns["utilization"].push_back(Figure(point.utilization));
      columns["up_bytes_per_second"].push_back(Figure(point.up_bytes_per_second));
      columns["down_bytes_per_second"].push_back(Figure(point.down_bytes_per_second));
    }
    workers.push_back(std::move(columns));
  }
  json steps = json::array();
  json losses = json::array();
  for (const EvaluationPoint& point : curves.held_out.points()) {
    steps.push_back(point.step);
    losses.push_back(Figure(point.loss));
  }
  return {{"now", Time(Now())},
          {"workers", std::move(workers)},
          {"held_out", {{"step", std::move(steps)}, {"loss", std::move(losses)}}}};
}

json StatusApi::Events(int64_t after) const {
  json events = json::array();
  const v1::ListEventsResponse past = options_.events->List(after);
  for (const v1::RunEvent& event : past.events()) {
    events.push_back({{"number", event.number()},
                      {"time", event.time()},
                      {"event", event.event()},
                      {"level", event.level()},
                      {"message", event.message()}});
  }
  // Numbers begin anew with every process.
  return {{"process", Time(started_unix_s_)}, {"events", std::move(events)}};
}

std::string StatusApi::Config() const { return FormatRunConfig(options_.run->config()); }

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
