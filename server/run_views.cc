#include "server/run_views.h"

#include "absl/flags/flag.h"
#include "server/store/run_directory.h"

ABSL_FLAG(std::string, http_address_file, "", "FILE: receives that HOST:PORT once it is served");

namespace causeway::server {
namespace {

constexpr char kEventsFile[] = "events.jsonl";

}  // namespace

absl::StatusOr<std::unique_ptr<RunViews>> RunViews::Open(const std::string& run_dir,
                                                         const OpenedRun& run,
                                                         const Standbys& standbys,
                                                         const CertificateFiles& certificates) {
  FileSystem& file_system = *FileSystem::Real();
  const std::string path = JoinPath(run_dir, kEventsFile);
  std::unique_ptr<RunViews> views(new RunViews(run_dir, run, standbys, certificates));
  RETURN_IF_ERROR(views->event_file_.Open(file_system, path));
  if (run.resumes) views->history_.Restore(*run.recovered);
  const absl::Status curves = views->history_.RestoreCurves();
  if (!curves.ok()) Log().warn("the curves begin anew: {}", curves.ToString());
  const absl::Status past = views->events_.Restore(file_system, path);
  if (!past.ok()) Log().warn("the status page begins without past events: {}", past.ToString());
  return views;
}

RunViews::RunViews(const std::string& run_dir, const OpenedRun& run, const Standbys& standbys,
                   const CertificateFiles& certificates)
    : run_dir_(run_dir),
      keeps_report_(run.resumes && FileSystem::Real()->Exists(JoinPath(run_dir, kReportFile))),
      event_file_(Clock::Real()),
      events_(&event_file_, Clock::Real()),
      history_({.clock = Clock::Real(),
                .curves_file = JoinPath(run_dir, kCurvesFile),
                .run_id = run.run_id}),
      metrics_({.file_system = FileSystem::Real(),
                .clock = Clock::Real(),
                .history = &history_,
                .run_dir = run_dir,
                .certificates = certificates,
                .events = &event_file_,
                .standbys = &standbys,
                .commits = [&store = *run.store] { return store.Position().commits(); },
                .replicated = run.replicated}) {}

absl::Status RunViews::Serve(std::optional<HttpListener> port, const ServedRun& run,
                             const CoordinatorServer& server) {
  keeps_report_ =
      keeps_report_ && run.coordinator() != nullptr && run.coordinator()->ReachedItsEnd();
  api_ = std::make_unique<StatusApi>(
      StatusApi::Options{.run = &run,
                         .history = &history_,
                         .events = &events_,
                         .clock = Clock::Real(),
                         .status = [&server] { return server.GetStatus(); }});
  HttpHandlers handlers;
  AddHealthHandlers(run, stopping_, handlers);
  handlers["/metrics"] = [this, &run, &server](const HttpRequest&) {
    MetricPage page;
    metrics_.AddTo(page, server.GetStatus(), run.Health().ok());
    server.AddTo(page);
    return HttpResponse::Metrics(page.Text());
  };
  AddStatusPage(*api_, handlers);
  if (!port.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      http_, HttpServer::StartAndSay(*std::move(port), std::move(handlers),
                                     "/ shows the run, and serves metrics and health",
                                     *FileSystem::Real(), absl::GetFlag(FLAGS_http_address_file)));
  return absl::OkStatus();
}

void RunViews::Close(const absl::Status& why) {
  history_.SaveCurves();
  events_.Record("coordinator_stopped",
                 why.ok() ? "the coordinator has stopped" : std::string(why.message()),
                 {{"code", std::string(absl::StatusCodeToString(why.code()))}});
  const absl::Status report =
      keeps_report_ ? absl::OkStatus()
                    : WriteFileAtomically(*FileSystem::Real(), JoinPath(run_dir_, kReportFile),
                                          absl::string_view(ReportPage(*api_, /*stopped=*/true)));
  if (!report.ok()) Log().warn("the run's report cannot be written: {}", report.ToString());
  http_ = nullptr;
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServeStandbyHttp(std::optional<HttpListener> port,
                                                             const StandbyNotes& notes,
                                                             const std::string& run_dir,
                                                             const CertificateFiles& certificates) {
  if (!port.has_value()) return std::unique_ptr<HttpServer>();
  HttpHandlers handlers;
  handlers["/healthz"] = [&notes](const HttpRequest&) {
    return HttpResponse::Text(200, notes.Get().doing);
  };
  handlers["/readyz"] = [&notes](const HttpRequest&) {
    const absl::Status ready = notes.Ready();
    return ready.ok() ? HttpResponse::Text(200, notes.Get().doing)
                      : HttpResponse::Text(503, ready.message());
  };
  handlers["/metrics"] = [&notes, run_dir, certificates](const HttpRequest&) {
    return HttpResponse::Metrics(
        StandbyMetricsText(notes, *FileSystem::Real(), run_dir, certificates));
  };
  return HttpServer::StartAndSay(*std::move(port), std::move(handlers),
                                 "/metrics shows how far the copy is", *FileSystem::Real(),
                                 absl::GetFlag(FLAGS_http_address_file));
}

}  // namespace causeway::server
