#include "worker/member/run_telemetry.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/identity/certificate.h"
#include "common/transfer/wire.h"

namespace causeway::worker {
namespace {

constexpr char kFileVersion[] = "brain.Event:2";
constexpr uint32_t kMaskDelta = 0xa282ead8;

uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc =
      Crc32c(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  return std::rotr(crc, 15) + kMaskDelta;
}

template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

uint32_t Crc32c(std::span<const uint8_t> bytes) {
  // ISA-L reads only, whatever its parameter says; it leaves both inversions to the caller.
  return ~crc32_iscsi(const_cast<uint8_t*>(bytes.data()), static_cast<int>(bytes.size()), ~0U);
}

std::string TensorBoardRecord(absl::string_view data) {
  std::string record;
  AppendLittleEndian(uint64_t{data.size()}, record);
  AppendLittleEndian(MaskedCrc(record), record);
  absl::StrAppend(&record, data);
  AppendLittleEndian(MaskedCrc(data), record);
  return record;
}

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Create(
    FileSystem& file_system, const std::string& folder, const std::string& worker_id,
    int64_t first_step, const Clock& clock) {
  RETURN_IF_ERROR(file_system.CreateFolders(folder));
  const std::string name =
      absl::StrCat("events.out.tfevents.", absl::ToUnixSeconds(clock.Now()), ".", worker_id);
  std::string path = JoinPath(folder, name);
  for (int i = 1; file_system.Exists(path); ++i) {
    path = JoinPath(folder, absl::StrCat(name, ".", i));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.Create(path));
  std::unique_ptr<TensorBoardWriter> writer(
      new TensorBoardWriter(std::move(file), std::move(path), clock));
  tensorboard::Event version;
  version.set_file_version(kFileVersion);
  RETURN_IF_ERROR(writer->Write(std::move(version)));
  tensorboard::Event start;
  start.set_step(first_step);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  RETURN_IF_ERROR(writer->Write(std::move(start)));
  return writer;
}

absl::Status TensorBoardWriter::Add(int64_t step, const Scalars& scalars) {
  tensorboard::Event event;
  event.set_step(step);
  for (const auto& [tag, scalar] : scalars) {
    if (!std::isfinite(scalar)) continue;
    tensorboard::Summary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(tag);
    value.set_simple_value(static_cast<float>(scalar));
  }
  return Write(std::move(event));
}

absl::Status TensorBoardWriter::Write(tensorboard::Event event) {
  event.set_wall_time(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
  const std::string record = TensorBoardRecord(event.SerializeAsString());
  return file_->Append(std::span(reinterpret_cast<const uint8_t*>(record.data()), record.size()));
}

RunTelemetry::RunTelemetry(const MemberOptions& options, FileSystem& file_system, Clock& clock)
    : options_(options), file_system_(file_system), clock_(clock), events_(&clock_) {
  figures_.worker_id = options_.worker_id;
}

absl::StatusOr<std::unique_ptr<RunTelemetry>> RunTelemetry::Open(const MemberOptions& options,
                                                                 FileSystem& file_system,
                                                                 Clock& clock) {
  std::unique_ptr<RunTelemetry> telemetry(new RunTelemetry(options, file_system, clock));
  if (options.metrics_address.empty()) return telemetry;
  absl::StatusOr<HttpListener> listener = HttpListener::Open(options.metrics_address);
  if (!listener.ok()) return Annotate(listener.status(), "--metrics");
  HttpHandlers handlers;
  handlers["/healthz"] = [telemetry = telemetry.get()](const HttpRequest&) {
    return telemetry->Health();
  };
  handlers["/readyz"] = [telemetry = telemetry.get()](const HttpRequest&) {
    return telemetry->Readiness();
  };
  handlers["/metrics"] = [telemetry = telemetry.get()](const HttpRequest&) {
    return HttpResponse::Metrics(telemetry->MetricsText());
  };
  ASSIGN_OR_RETURN(telemetry->http_,
                   HttpServer::StartAndSay(*std::move(listener), std::move(handlers),
                                           "/metrics is for Prometheus", file_system,
                                           options.metrics_address_file));
  return telemetry;
}

absl::Status RunTelemetry::Begin(const std::string& run_id, int64_t budget_steps,
                                 int64_t first_step) {
  {
    absl::MutexLock lock(&mutex_);
    figures_.run_id = run_id;
    figures_.budget_steps = budget_steps;
  }
  if (!options_.output.empty()) {
    RETURN_IF_ERROR(events_.Open(file_system_, JoinPath(options_.output, "events.jsonl")));
  }
  if (options_.tensorboard.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<TensorBoardWriter>> curves =
      TensorBoardWriter::Create(file_system_, JoinPath(options_.tensorboard, options_.worker_id),
                                options_.worker_id, first_step + 1, clock_);
  if (!curves.ok()) return Annotate(curves.status(), "--tensorboard");
  curves_ = *std::move(curves);
  return absl::OkStatus();
}

absl::Status RunTelemetry::Update(WorkerFigures figures) {
  TensorBoardWriter::Scalars scalars;
  {
    absl::MutexLock lock(&mutex_);
    figures.run_id = figures_.run_id;
    figures.worker_id = figures_.worker_id;
    figures.budget_steps = figures_.budget_steps;
    if (!figures.eval_loss.has_value()) figures.eval_loss = figures_.eval_loss;
    figures_ = figures;
  }
  if (curves_ == nullptr) return absl::OkStatus();
  const v1::Heartbeat& heartbeat = figures.heartbeat;
  scalars.emplace_back("train/loss", heartbeat.train_loss());
  if (figures.learning_rate.has_value()) {
    scalars.emplace_back("train/learning_rate", *figures.learning_rate);
  }
  if (figures.gradient_norm.has_value()) {
    scalars.emplace_back("train/gradient_norm", *figures.gradient_norm);
  }
  scalars.emplace_back("speed/tokens_per_second", heartbeat.tokens_per_second());
  scalars.emplace_back("speed/compute_utilization", figures.utilization);
  scalars.emplace_back("speed/blocked_seconds", heartbeat.blocked_seconds());
  scalars.emplace_back("speed/pace", static_cast<double>(heartbeat.pace_milli()) / 1000);
  scalars.emplace_back("link/megabytes_up", 1e-6 * static_cast<double>(heartbeat.bytes_up()));
  scalars.emplace_back("link/megabytes_down", 1e-6 * static_cast<double>(heartbeat.bytes_down()));
  scalars.emplace_back("link/rounds_merged", static_cast<double>(figures.rounds_merged));
  return curves_->Add(heartbeat.step(), scalars);
}

void RunTelemetry::StepBegins(int64_t step) {
  absl::MutexLock lock(&mutex_);
  computing_ = {step, clock_.Monotonic()};
}

void RunTelemetry::StepEnds() {
  absl::MutexLock lock(&mutex_);
  computing_.reset();
}

void RunTelemetry::SetStepsBeforeWait(int64_t steps) {
  absl::MutexLock lock(&mutex_);
  figures_.heartbeat.set_steps_before_wait(steps);
}

void RunTelemetry::SetAttached(bool attached) {
  absl::MutexLock lock(&mutex_);
  attached_ = attached;
  if (attached) welcomed_ = true;
}

HttpResponse RunTelemetry::Health() const {
  absl::MutexLock lock(&mutex_);
  if (!computing_.has_value()) return HttpResponse::Text(200, "ok");
  const absl::Duration usual = absl::Seconds(figures_.heartbeat.inner_step_seconds());
  const absl::Duration taken = clock_.Monotonic() - computing_->since;
  // How long a first step takes nobody knows: processors may need hours for it.
  if (usual <= absl::ZeroDuration()) return HttpResponse::Text(200, "ok");
  if (taken < std::max(kStuckAfter, kStuckSteps * usual)) return HttpResponse::Text(200, "ok");
  return HttpResponse::Text(
      503, absl::StrCat("step ", computing_->step, " has been computing for ",
                        absl::FormatDuration(absl::Trunc(taken, absl::Seconds(1))), ", usual are ",
                        absl::FormatDuration(absl::Trunc(usual, absl::Milliseconds(1))),
                        ": the device or the disk with the data does not answer"));
}

HttpResponse RunTelemetry::Readiness() const {
  absl::MutexLock lock(&mutex_);
  if (attached_) return HttpResponse::Text(200, "ok");
  return HttpResponse::Text(503, welcomed_ ? "no connection to the coordinator; trying again"
                                           : "the coordinator has not welcomed this worker yet");
}

absl::Status RunTelemetry::Evaluated(int64_t step, double loss) {
  {
    absl::MutexLock lock(&mutex_);
    figures_.eval_loss = loss;
  }
  return curves_ == nullptr ? absl::OkStatus() : curves_->Add(step, {{"eval/loss", loss}});
}

namespace {

constexpr char kLink[] = "inter-site";

void AddTraining(MetricPage& page, const WorkerFigures& figures) {
  const v1::Heartbeat& heartbeat = figures.heartbeat;
  page.Gauge("causeway_training_info", "1; which worker of which run this is.", 1,
             {{"run", figures.run_id}, {"worker", figures.worker_id}});
  page.Gauge("causeway_training_step", "Steps of the schedule done.", heartbeat.step());
  page.Gauge("causeway_training_budget_steps", "train.steps", figures.budget_steps);
  page.Counter("causeway_training_tokens_total", "Trained in this run.", heartbeat.tokens());
  page.Gauge("causeway_training_tokens_per_second", "Over the last seconds.",
             heartbeat.tokens_per_second());
  page.Gauge("causeway_training_loss", "Mean of the last step, nats per token.",
             heartbeat.train_loss());
  if (figures.eval_loss.has_value()) {
    page.Gauge("causeway_training_eval_loss",
               "Of the published parameters, at the worker that evaluates.", *figures.eval_loss);
  }
  if (figures.learning_rate.has_value()) {
    page.Gauge("causeway_training_learning_rate",
               "Of the last inner step; absent with gradients as contributions.",
               *figures.learning_rate);
  }
  if (figures.gradient_norm.has_value()) {
    page.Gauge("causeway_training_gradient_norm", "Of the last inner step, before clipping.",
               *figures.gradient_norm);
  }
  page.Gauge("causeway_training_compute_utilization_ratio",
             "Compute by all time since the first step, evaluations excepted.",
             figures.utilization);
  page.Counter("causeway_training_compute_seconds_total", "In training steps.",
               heartbeat.compute_seconds());
  page.Counter("causeway_training_blocked_seconds_total", "Waiting for synchronization.",
               heartbeat.blocked_seconds());
  page.Counter("causeway_training_evaluation_seconds_total", "In evaluations.",
               figures.evaluation_seconds);
  page.Gauge("causeway_training_inner_step_seconds", "Smoothed.", heartbeat.inner_step_seconds());
  page.Gauge("causeway_training_pace_ratio", "Steps of the schedule that an inner step counts for.",
             static_cast<double>(heartbeat.pace_milli()) / 1000);
  page.Gauge("causeway_training_checkpoint_step", "That it would resume from; -1: none.",
             heartbeat.checkpoint_step());
  page.Gauge("causeway_training_late_answers", "Answers missing overlap_steps after their sends.",
             heartbeat.late_answers());
  if (heartbeat.has_steps_before_wait()) {
    page.Gauge("causeway_training_steps_before_wait",
               "Steps before it waits, should no answer come.", heartbeat.steps_before_wait());
  }
  page.Gauge("causeway_training_data_slot", "The part that is drawn.", figures.data_slot);
  page.Counter("causeway_sync_rounds_merged_total", "By this process.", figures.rounds_merged);
  page.Counter("causeway_sync_rounds_late_total", "Closed before this process's delta came.",
               figures.rounds_late);
}

void AddLink(MetricPage& page, const v1::Heartbeat& heartbeat) {
  const MetricLabels labels = {{"link", kLink}};
  const MetricLabels up = {{"link", kLink}, {"direction", "up"}};
  const MetricLabels down = {{"link", kLink}, {"direction", "down"}};
  const v1::LinkReport& link = heartbeat.link();
  const std::string bytes = "causeway_link_payload_bytes_total";
  const std::string bytes_help = "Payload, of this process.";
  page.Counter(bytes, bytes_help, heartbeat.bytes_up(), up);
  page.Counter(bytes, bytes_help, heartbeat.bytes_down(), down);
  const std::string goodput = "causeway_link_goodput_bytes_per_second";
  const std::string goodput_help = "Of objects while one was under way, smoothed; 0: not known.";
  page.Gauge(goodput, goodput_help, link.goodput_up_bytes_per_second(), up);
  page.Gauge(goodput, goodput_help, link.goodput_down_bytes_per_second(), down);
  page.Gauge("causeway_link_rtt_seconds", "The smallest that TCP measured lately; 0: not known.",
             link.rtt_seconds(), labels);
  page.Gauge("causeway_link_connections", "That transfers use.", link.connections(), labels);
  page.Counter("causeway_link_resent_chunks_total", "Chunks sent or received more than once.",
               link.resent_chunks(), labels);
  page.Counter("causeway_link_resumes_total", "Transfers that went on after a cut.", link.resumes(),
               labels);
  page.Counter("causeway_link_retransmitted_segments_total", "By TCP.",
               link.retransmitted_segments(), labels);
  page.Counter("causeway_link_send_blocked_seconds_total",
               "Time that an object was ready and no connection took it.",
               link.send_blocked_seconds(), labels);
}

}  // namespace

std::string RunTelemetry::MetricsText() const {
  MetricPage page;
  page.Gauge("causeway_build_info", "1; the release.", 1, {{"version", kSoftwareVersion}});
  {
    absl::MutexLock lock(&mutex_);
    AddTraining(page, figures_);
    AddLink(page, figures_.heartbeat);
  }
  std::map<std::string, int64_t> counts = events_.counts();
  for (const EventName& event : WorkerEvents()) {
    page.Counter("causeway_events_total", "Events by name.",
                 static_cast<double>(counts[event.name]), {{"event", event.name}});
  }
  absl::StatusOr<uint64_t> free = absl::NotFoundError("no folder");
  if (!options_.output.empty()) free = file_system_.FreeBytes(options_.output);
  if (free.ok()) {
    page.Gauge("causeway_store_free_bytes", "On the disk of --out, or of the run's folder.",
               static_cast<double>(*free));
  }
  AddCertificateFigures(page, {{"tls_cert", options_.security.cert_file}}, EndOfCertificate);
  AddProcessFigures(page);
  return page.Text();
}

}  // namespace causeway::worker
