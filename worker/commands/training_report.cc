// What TrainingRun tells of itself: log lines, metrics.jsonl, heartbeats, summary.json.
#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/params/link_report.h"
#include "common/telemetry/log.h"
#include "worker/commands/training_run.h"
#include "worker/data/tokenizer.h"
#include "worker/train/generate.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr absl::Duration kLineInterval = absl::Seconds(5);
constexpr double kSampleTemperature = 0.7;
constexpr int64_t kPromptTokens = 64;

double UnixSeconds(Clock& clock) { return absl::ToDoubleSeconds(clock.Now() - absl::UnixEpoch()); }

}  // namespace

absl::Status TrainingRun::OpenMetrics() {
  const std::string path = JoinPath(options_.output, "metrics.jsonl");
  // A step that is trained again, from the checkpoint on, is written again.
  std::string kept;
  if (!anew_ && file_system_.Exists(path)) {
    ASSIGN_OR_RETURN(const std::string text, file_system_.ReadFile(path));
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const json entry = json::parse(line.begin(), line.end(), nullptr, false);
      const bool whole = entry.is_object() && entry.value("kind", json()).is_string();
      if (!whole || !entry.value("step", json(0)).is_number_integer()) continue;
      if (entry.value("step", int64_t{0}) <= progress_.step) absl::StrAppend(&kept, line, "\n");
    }
  }
  RETURN_IF_ERROR(WriteFileAtomically(file_system_, path, absl::string_view(kept)));
  ASSIGN_OR_RETURN(metrics_, JsonLinesFile::Continue(file_system_, path));
  return absl::OkStatus();
}

double TrainingRun::Utilization() const {
  const absl::Duration wall = clock_.Monotonic() - progress_.start - progress_.evaluation;
  return wall > absl::ZeroDuration() ? absl::FDivDuration(progress_.compute, wall) : 0;
}

void TrainingRun::Report(const StepReport& report, absl::Duration step_time) {
  const absl::Duration now = clock_.Monotonic();
  progress_.loss = report.loss;
  const double seconds = absl::ToDoubleSeconds(now - last_line_);
  const bool first = progress_.inner_steps == 1;
  if (first) {
    progress_.tokens_per_second =
        static_cast<double>(report.tokens) / std::max(1e-9, absl::ToDoubleSeconds(step_time));
  } else if (now - last_line_ >= kLineInterval) {
    progress_.tokens_per_second =
        static_cast<double>(progress_.tokens - last_line_tokens_) / seconds;
  }
  const double blocked = absl::ToDoubleSeconds(sync_->blocked());
  if (first || now - last_line_ >= kLineInterval) {
    LogProgress(now);
    last_line_ = now;
    last_line_tokens_ = progress_.tokens;
  }
  heartbeat_.set_step(progress_.step);
  heartbeat_.set_tokens(progress_.tokens);
  heartbeat_.set_tokens_per_second(progress_.tokens_per_second);
  heartbeat_.set_train_loss(report.loss);
  heartbeat_.set_compute_seconds(absl::ToDoubleSeconds(progress_.compute));
  heartbeat_.set_blocked_seconds(blocked);
  heartbeat_.set_bytes_up(exchange_->bytes_up());
  heartbeat_.set_bytes_down(exchange_->bytes_down());
  heartbeat_.set_inner_step_seconds(absl::ToDoubleSeconds(progress_.inner_step_time));
  heartbeat_.set_pace_milli(counter_.pace_milli());
  const SyncEngine::Slack slack = sync_->slack();
  heartbeat_.set_late_answers(slack.late);
  heartbeat_.set_steps_before_wait(slack.steps.value_or(-1));
  heartbeat_.set_download_bytes_per_second(
      link_->meter().goodput_bytes_per_second(Direction::kDown));
  heartbeat_.set_checkpoint_step(progress_.checkpoint_step);
  *heartbeat_.mutable_link() = link_->Report();
  JudgeBuffers();
  session_->SetProgress(heartbeat_);
  ShowFigures(report);
  const absl::Status written =
      metrics_->Append({{"kind", "step"},
                        {"unix_s", UnixSeconds(clock_)},
                        {"step", progress_.step},
                        {"pace", static_cast<double>(counter_.pace_milli()) / kPaceOne},
                        {"train_loss", report.loss},
                        {"tokens", progress_.tokens},
                        {"tokens_per_second", progress_.tokens_per_second},
                        {"compute_s", absl::ToDoubleSeconds(progress_.compute)},
                        {"blocked_s", blocked},
                        {"bytes_up", exchange_->bytes_up()},
                        {"bytes_down", exchange_->bytes_down()}});
  if (!written.ok()) Log().warn("metrics not written: {}", std::string(written.message()));
}

void TrainingRun::JudgeBuffers() {
  if (!socket_buffers_.has_value()) return;
  const v1::LinkReport link = link_->Report();
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

void TrainingRun::LogProgress(absl::Duration now) {
  const int64_t steps = run_.config().train().steps();
  const auto done = static_cast<double>(progress_.step - progress_.first_step);
  const auto left = static_cast<double>(steps - progress_.step);
  const double seconds_left = absl::ToDoubleSeconds(now - progress_.start) / done * left;
  const double percent = 100.0 * static_cast<double>(progress_.step) / static_cast<double>(steps);
  Log().info(
      "step {}/{} ({:.0f}%)  loss {:.4f}  {:.0f} tokens/s  utilization {:.1f}%  rounds {}  "
      "{:.2f} MB up  {:.2f} MB down  ETA {}",
      progress_.step, steps, percent, progress_.loss, progress_.tokens_per_second,
      100 * Utilization(), sync_->rounds_merged(),
      1e-6 * static_cast<double>(exchange_->bytes_up()),
      1e-6 * static_cast<double>(exchange_->bytes_down()),
      absl::FormatDuration(absl::Seconds(std::ceil(seconds_left))));
  const SyncEngine::Slack slack = sync_->slack();
  if (slack.late > 0) {
    Log().warn("{} late {}; {} more {} before training waits for one", slack.late,
               slack.late == 1 ? "answer" : "answers", slack.steps.value_or(0),
               slack.steps == 1 ? "step" : "steps");
  }
  WatchCertificate();
}

void TrainingRun::WatchCertificate() {
  const std::string reminder = expiry_.Poll();
  if (!reminder.empty()) {
    telemetry_->Record("certificate_expiring", reminder, json::object());
  }
  const std::string renewal = expiry_.PollRenewal();
  if (!renewal.empty()) telemetry_->Record("certificate_reloaded", renewal, json::object());
}

void TrainingRun::ShowFigures(const StepReport& report) {
  WorkerFigures figures;
  figures.data_slot = data_slot_;
  figures.heartbeat = heartbeat_;
  figures.utilization = Utilization();
  figures.evaluation_seconds = absl::ToDoubleSeconds(progress_.evaluation);
  figures.rounds_merged = sync_->rounds_merged();
  figures.rounds_late = sync_->rounds_late();
  if (report.update.has_value()) {
    figures.learning_rate = report.update->learning_rate;
    figures.gradient_norm = report.update->gradient_norm;
  }
  const absl::Status shown = telemetry_->Update(std::move(figures));
  if (!shown.ok()) Log().warn("curves not written: {}", std::string(shown.message()));
}

absl::Status TrainingRun::ReadTasks() {
  const v1::ModelConfig& model = run_.config().model();
  for (const std::string& path : options_.eval_tasks) {
    Task task = {.path = path, .examples = {}, .result = {}};
    ASSIGN_OR_RETURN(task.examples, ReadChoiceTask(file_system_, path, model.vocabulary_size()));
    RETURN_IF_ERROR(Annotate(CheckChoices(task.examples, model.sequence_length()), path));
    tasks_.push_back(std::move(task));
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::EvaluateTasks() {
  const absl::Duration before = clock_.Monotonic();
  // An order to stop does not wait for thousands of examples.
  const auto goes_on = [&](int64_t, int64_t) {
    const absl::StatusOr<Session::Orders> orders = session_->orders();
    return orders.ok() && !orders->drain;
  };
  ASSIGN_OR_RETURN(const std::span<const float> published, sync_->published());
  for (Task& task : tasks_) {
    const absl::StatusOr<ChoiceAccuracy> accuracy =
        trainer_->EvaluateTask(published, task.examples, goes_on);
    if (absl::IsCancelled(accuracy.status())) break;
    RETURN_IF_ERROR(Annotate(accuracy.status(), task.path));
    task.result = ChoiceAccuracyToJson(*accuracy);
    task.result["task"] = task.path;
    task.result["step"] = progress_.step;
    Log().info("step {}: {}: accuracy {:.4f}, normalized {:.4f} over {} examples", progress_.step,
               task.path, accuracy->accuracy, accuracy->normalized, accuracy->examples);
    json line = task.result;
    line["kind"] = "task";
    line["unix_s"] = UnixSeconds(clock_);
    RETURN_IF_ERROR(metrics_->Append(line));
  }
  progress_.evaluation += clock_.Monotonic() - before;
  return absl::OkStatus();
}

std::string TrainingRun::Sample() {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(file_system_, dataset_.tokenizer());
  if (!tokenizer.ok()) return "";
  // The beginning of the held-out text: what the model knows to continue, and has not seen.
  const ShardSequence& text =
      dataset_.held_out()->tokens() >= kPromptTokens ? *dataset_.held_out() : *dataset_.train();
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(text.tokens(), kPromptTokens)));
  if (!text.Read(0, run_.config().model().vocabulary_size(), tokens).ok()) return "";
  const absl::StatusOr<std::span<const float>> published = sync_->published();
  if (!published.ok()) return "";
  CpuDecoder<float> decoder(run_.config().model(), plan_, /*sequences=*/1, pool_.get());
  const std::vector<int32_t> continuation =
      Generate(decoder, *published, std::array{tokens},
               {.tokens = options_.sample_tokens,
                .temperature = kSampleTemperature,
                .seed = run_.config().train().seed(),
                // A model may have more tokens than its tokenizer can decode.
                .known_tokens = static_cast<int32_t>((*tokenizer)->vocabulary_size())})
          .front();
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  const absl::StatusOr<std::string> sample = (*tokenizer)->Decode(tokens);
  return sample.ok() ? *sample : "";
}

absl::Status TrainingRun::WriteSummary() {
  const double wall = absl::ToDoubleSeconds(wall_);
  const double compute = absl::ToDoubleSeconds(progress_.compute);
  json summary = {
      {"worker", options_.worker_id},
      {"data_slot", data_slot_},
      {"parameters", plan_.parameters()},
      {"first_step", progress_.first_step},
      {"steps", progress_.step},
      {"inner_steps", progress_.inner_steps},  // Of this process.
      {"tokens", progress_.tokens},
      {"wall_seconds", wall},
      {"compute_seconds", compute},
      {"blocked_seconds", absl::ToDoubleSeconds(sync_->blocked())},
      {"evaluation_seconds", absl::ToDoubleSeconds(progress_.evaluation)},
      {"compute_utilization", wall > 0 ? compute / wall : 0},
      {"tokens_per_second",
       wall > 0 ? static_cast<double>(progress_.tokens - progress_.first_tokens) / wall : 0},
      {"train_loss", progress_.loss},
      {"rounds_merged", sync_->rounds_merged()},
      {"rounds_late", sync_->rounds_late()},
      {"bytes_up", exchange_->bytes_up()},
      {"bytes_down", exchange_->bytes_down()},
      {"link", LinkReportToJson(link_->Report())}};
  if (progress_.initial_loss.has_value()) summary["initial_loss"] = *progress_.initial_loss;
  if (progress_.eval_loss.has_value()) summary["eval_loss"] = *progress_.eval_loss;
  for (const Task& task : tasks_) {
    if (!task.result.is_null()) summary["tasks"].push_back(task.result);
  }
  if (EvaluatesHere() && options_.sample_tokens > 0) summary["sample"] = Sample();
  return WriteFileAtomically(
      file_system_, JoinPath(options_.output, "summary.json"),
      absl::string_view(summary.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
}

}  // namespace causeway::worker
