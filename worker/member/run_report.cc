#include "worker/member/run_report.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/files/json.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr absl::Duration kLineInterval = absl::Seconds(5);
// Weight of an inner step in the smoothed step time.
constexpr double kNewestStep = 1.0 / 16;

double UnixSeconds(Clock& clock) { return absl::ToDoubleSeconds(clock.Now() - absl::UnixEpoch()); }

}  // namespace

RunReport::RunReport(const MemberOptions& options, const ReachedRun& reached,
                     const FragmentPlan& plan, FileSystem& file_system, Clock& clock)
    : options_(options),
      reached_(reached),
      plan_(plan),
      file_system_(file_system),
      clock_(clock),
      expiry_(options.security.cert_file, clock, options.security.renewal) {}

void RunReport::SpeakBy(RunTelemetry* telemetry, Session* session, WaitWatch* wait_watch) {
  telemetry_ = telemetry;
  session_ = session;
  wait_watch_ = wait_watch;
}

absl::Status RunReport::Begin(const Standing& now, bool anew) {
  first_step_ = now.counter.step();
  first_tokens_ = tokens_;
  heartbeat_.set_step(first_step_);
  heartbeat_.set_tokens(tokens_);
  heartbeat_.set_pace_milli(now.counter.pace_milli());
  heartbeat_.set_checkpoint_step(checkpoint_step_);
  session_->SetProgress(heartbeat_);
  return OpenMetrics(now, anew);
}

absl::Status RunReport::OpenMetrics(const Standing& now, bool anew) {
  const int64_t step = now.counter.step();
  if (options_.output.empty()) return absl::OkStatus();
  const std::string path = JoinPath(options_.output, "metrics.jsonl");
  // A step that is trained again, from the checkpoint on, is written again.
  std::string kept;
  if (!anew && file_system_.Exists(path)) {
    ASSIGN_OR_RETURN(const std::string text, file_system_.ReadFile(path));
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const json entry = json::parse(line.begin(), line.end(), nullptr, false);
      const bool whole = entry.is_object() && entry.value("kind", json()).is_string();
      if (!whole || !entry.value("step", json(0)).is_number_integer()) continue;
      if (entry.value("step", int64_t{0}) <= step) absl::StrAppend(&kept, line, "\n");
    }
  }
  RETURN_IF_ERROR(WriteFileAtomically(file_system_, path, absl::string_view(kept)));
  ASSIGN_OR_RETURN(metrics_, JsonLinesFile::Continue(file_system_, path));
  json start = {{"kind", "start"},
                {"worker", options_.worker_id},
                {"parameters", plan_.parameters()},
                {"steps", reached_.run.config().train().steps()},
                {"first_step", step},
                {"data_slot", now.data_slot},
                {"threads", options_.threads}};
  if (const std::optional<Certificate>& own = reached_.security.certificate; own.has_value()) {
    start["certificate_end_unix_s"] = absl::ToUnixSeconds(own->not_after);
  }
  return Append(std::move(start));
}

absl::Status RunReport::Append(json line) {
  if (metrics_ == nullptr) return absl::OkStatus();
  line["unix_s"] = UnixSeconds(clock_);
  return metrics_->Append(line);
}

void RunReport::StartClock() {
  evaluation_ = absl::ZeroDuration();
  start_ = clock_.Monotonic();
  last_line_ = start_;
  last_line_tokens_ = tokens_;
}

void RunReport::StopClock(int64_t step) {
  if (step > first_step_) wall_ = clock_.Monotonic() - start_ - evaluation_;
}

void RunReport::CountStep(int64_t tokens, absl::Duration time) {
  compute_ += time;
  step_time_ = time;
  step_tokens_ = tokens;
  tokens_ += tokens;
  // The first step warms caches and memory up.
  if (++inner_steps_ == 1) return;
  const double newest = std::max(kNewestStep, 1 / static_cast<double>(inner_steps_ - 1));
  inner_step_time_ += newest * (time - inner_step_time_);
}

double RunReport::Utilization() const {
  const absl::Duration wall = clock_.Monotonic() - start_ - evaluation_;
  return wall > absl::ZeroDuration() ? absl::FDivDuration(compute_, wall) : 0;
}

void RunReport::Step(const Standing& now, const StepFigures& figures) {
  const int64_t step = now.counter.step();
  const absl::Duration time = clock_.Monotonic();
  if (figures.loss.has_value()) loss_ = figures.loss;
  const double seconds = absl::ToDoubleSeconds(time - last_line_);
  const bool first = inner_steps_ == 1;
  if (first) {
    tokens_per_second_ =
        static_cast<double>(step_tokens_) / std::max(1e-9, absl::ToDoubleSeconds(step_time_));
  } else if (time - last_line_ >= kLineInterval) {
    tokens_per_second_ = static_cast<double>(tokens_ - last_line_tokens_) / seconds;
  }
  const double blocked = absl::ToDoubleSeconds(now.sync.blocked());
  if (first || time - last_line_ >= kLineInterval) {
    LogProgress(now, time);
    last_line_ = time;
    last_line_tokens_ = tokens_;
  }
  heartbeat_.set_step(step);
  heartbeat_.set_tokens(tokens_);
  heartbeat_.set_tokens_per_second(tokens_per_second_);
  if (figures.loss.has_value()) heartbeat_.set_train_loss(*figures.loss);
  heartbeat_.set_compute_seconds(absl::ToDoubleSeconds(compute_));
  heartbeat_.set_blocked_seconds(blocked);
  heartbeat_.set_bytes_up(now.exchange.bytes_up());
  heartbeat_.set_bytes_down(now.exchange.bytes_down());
  heartbeat_.set_inner_step_seconds(absl::ToDoubleSeconds(inner_step_time_));
  heartbeat_.set_pace_milli(now.counter.pace_milli());
  *heartbeat_.mutable_link() = now.link.Report();
  heartbeat_.set_download_bytes_per_second(heartbeat_.link().goodput_down_bytes_per_second());
  heartbeat_.set_checkpoint_step(checkpoint_step_);
  SyncEngine::Slack slack = now.sync.slack();
  // At its end training waits for whatever is still in flight.
  slack.steps = std::min(slack.steps, std::max<int64_t>(1, now.end - step));
  heartbeat_.set_late_answers(slack.late);
  heartbeat_.set_steps_before_wait(slack.steps);
  wait_watch_->SetSlack(slack);
  JudgeBuffers(heartbeat_.link());
  session_->SetProgress(heartbeat_);
  ShowFigures(now, figures);
  if (metrics_ == nullptr) return;
  json line = {{"kind", "step"},
               {"step", step},
               {"pace", static_cast<double>(now.counter.pace_milli()) / kPaceOne},
               {"tokens", tokens_},
               {"tokens_per_second", tokens_per_second_},
               {"compute_s", absl::ToDoubleSeconds(compute_)},
               {"blocked_s", blocked},
               {"bytes_up", now.exchange.bytes_up()},
               {"bytes_down", now.exchange.bytes_down()}};
  if (figures.loss.has_value()) line["train_loss"] = *figures.loss;
  AppendIfPossible(std::move(line));
}

void RunReport::AppendIfPossible(json line) {
  const absl::Status written = Append(std::move(line));
  if (!written.ok() && appended_.ok()) {
    Log().warn("metrics not written, until they can be: {}", std::string(written.message()));
  }
  appended_ = written;
}

void RunReport::Evaluated(int64_t step, double loss) {
  if (!initial_eval_loss_.has_value()) initial_eval_loss_ = loss;
  eval_loss_ = loss;
  heartbeat_.mutable_evaluation()->set_step(step);
  heartbeat_.mutable_evaluation()->set_loss(loss);
  session_->SetProgress(heartbeat_);
  telemetry_->Record("evaluated",
                     absl::StrFormat("step %d: held-out loss of the published parameters %.4f nats "
                                     "per token",
                                     step, loss),
                     {{"step", step}, {"eval_loss", loss}});
  const absl::Status shown = telemetry_->Evaluated(step, loss);
  if (!shown.ok()) Log().warn("curves not written: {}", std::string(shown.message()));
  AppendIfPossible({{"kind", "eval"}, {"step", step}, {"eval_loss", loss}});
}

void RunReport::CheckpointWritten(int64_t step) {
  checkpoint_step_ = step;
  heartbeat_.set_checkpoint_step(step);  // An evaluation may send it before the next step does.
  session_->SetCheckpoint(checkpoint_step_);
  telemetry_->Record("checkpoint_written",
                     absl::StrCat("checkpoint written at step ", checkpoint_step_),
                     {{"step", checkpoint_step_}});
}

void RunReport::JudgeBuffers(const v1::LinkReport& link) {
  if (!socket_buffers_.has_value()) return;
  // More connections come first, where they are for this worker to choose.
  if (options_.connections == 0 && link.connections() < kMaxConnections) return;
  MeasuredDirection up;
  up.bytes_per_second = link.goodput_up_bytes_per_second();
  up.rtt = absl::Seconds(link.rtt_seconds());
  up.connections = link.connections();
  MeasuredDirection down = up;
  down.bytes_per_second = link.goodput_down_bytes_per_second();
  const std::string warning = SocketBufferWarning(*socket_buffers_, up, down);
  if (warning.empty()) return;
  telemetry_->Record("buffers_small", warning, json::object());
  socket_buffers_.reset();
}

void RunReport::LogProgress(const Standing& now, absl::Duration time) {
  const int64_t step = now.counter.step();
  const int64_t steps = reached_.run.config().train().steps();
  const auto done = static_cast<double>(step - first_step_);
  const auto left = static_cast<double>(steps - step);
  const double seconds_left = absl::ToDoubleSeconds(time - start_) / done * left;
  const double percent = 100.0 * static_cast<double>(step) / static_cast<double>(steps);
  const std::string loss = loss_.has_value() ? absl::StrFormat("loss %.4f  ", *loss_) : "";
  Log().info(
      "step {}/{} ({:.0f}%)  {}{:.0f} tokens/s  utilization {:.1f}%  rounds {}  "
      "{:.2f} MB up  {:.2f} MB down  ETA {}",
      step, steps, percent, loss, tokens_per_second_, 100 * Utilization(), now.sync.rounds_merged(),
      1e-6 * static_cast<double>(now.exchange.bytes_up()),
      1e-6 * static_cast<double>(now.exchange.bytes_down()),
      absl::FormatDuration(absl::Seconds(std::ceil(seconds_left))));
  WatchCertificate();
}

void RunReport::Waiting(int64_t step, const std::optional<SyncEvent>& event) {
  const absl::Duration waited = wait_watch_->SetWaiting(event);
  if (event.has_value()) {
    session_->SetStepsBeforeWait(0);
    telemetry_->SetStepsBeforeWait(0);
  } else if (waited >= WaitWatch::kWorthSaying) {
    const double seconds = absl::ToDoubleSeconds(waited);
    telemetry_->Record("training_waited",
                       absl::StrFormat("training waited %.1f s for an answer", seconds),
                       {{"step", step}, {"seconds", seconds}});
  }
}

void RunReport::WatchCertificate() {
  const std::string reminder = expiry_.Poll();
  if (!reminder.empty()) {
    telemetry_->Record("certificate_expiring", reminder, json::object());
  }
}

void RunReport::ShowFigures(const Standing& now, const StepFigures& step_figures) {
  WorkerFigures figures;
  figures.data_slot = now.data_slot;
  figures.heartbeat = heartbeat_;
  figures.utilization = Utilization();
  figures.evaluation_seconds = absl::ToDoubleSeconds(evaluation_);
  figures.rounds_merged = now.sync.rounds_merged();
  figures.rounds_late = now.sync.rounds_late();
  figures.learning_rate = step_figures.learning_rate;
  figures.gradient_norm = step_figures.gradient_norm;
  const absl::Status shown = telemetry_->Update(std::move(figures));
  if (!shown.ok()) Log().warn("curves not written: {}", std::string(shown.message()));
}

json RunReport::Summary(const Standing& now) const {
  const double wall = absl::ToDoubleSeconds(wall_);
  const double compute = absl::ToDoubleSeconds(compute_);
  json summary = {
      {"worker", options_.worker_id},
      {"data_slot", now.data_slot},
      {"parameters", plan_.parameters()},
      {"first_step", first_step_},
      {"steps", now.counter.step()},
      {"inner_steps", inner_steps_},  // Counted by this process.
      {"tokens", tokens_},
      {"wall_seconds", wall},
      {"compute_seconds", compute},
      {"blocked_seconds", absl::ToDoubleSeconds(now.sync.blocked())},
      {"evaluation_seconds", absl::ToDoubleSeconds(evaluation_)},
      {"compute_utilization", wall > 0 ? compute / wall : 0},
      {"tokens_per_second", wall > 0 ? static_cast<double>(tokens_ - first_tokens_) / wall : 0},
      {"train_loss", loss_.value_or(0)},
      {"rounds_merged", now.sync.rounds_merged()},
      {"rounds_late", now.sync.rounds_late()},
      {"bytes_up", now.exchange.bytes_up()},
      {"bytes_down", now.exchange.bytes_down()},
      {"link", MessageToJson(now.link.Report())}};
  if (initial_eval_loss_.has_value()) summary["initial_loss"] = *initial_eval_loss_;
  if (eval_loss_.has_value()) summary["eval_loss"] = *eval_loss_;
  return summary;
}

}  // namespace causeway::worker
