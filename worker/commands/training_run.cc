#include "worker/commands/training_run.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "worker/train/generate.h"

namespace causeway::worker {
TrainingRun::TrainingRun(const TrainingOptions& options, std::unique_ptr<RunMember> member,
                         FileSystem& file_system, Clock& clock, Dataset dataset)
    : options_(options),
      file_system_(file_system),
      clock_(clock),
      dataset_(std::move(dataset)),
      pool_(std::make_unique<ThreadPool>(options.member.threads)),
      member_(std::move(member)) {}

TrainingRun::~TrainingRun() = default;

absl::Status TrainingRun::Train(const std::function<bool()>& stop) {
  absl::StatusOr<std::thread> watcher = StartThread([&] { WatchForStop(stop); });
  absl::Status status = watcher.ok() ? TrainSteps() : watcher.status();
  if (!status.ok() && !SiteStatus().ok()) status = SiteStatus();
  if (absl::IsCancelled(status) && member_->session().orders().ok()) {
    drained_ = true;  // Nothing but the watcher cancels while the session is well.
    status = absl::OkStatus();
  }
  if (status.ok()) status = Finish();
  {
    absl::MutexLock lock(&ended_mutex_);
    ended_ = true;
  }
  if (watcher.ok()) watcher->join();
  if (!status.ok()) {
    if (!SiteStatus().ok()) status = SiteStatus();
    // A process that is lost may be back soon, with all others: then the run has waited for this
    // worker, which continues from its checkpoint.
    return member_->Fail(status, /*silently=*/!SiteStatus().ok());
  }
  member_->Leave(drained_);
  return WriteSummary();
}

void TrainingRun::WatchForStop(const std::function<bool()>& stop) {
  const auto told_to_stop = [&] {
    const absl::StatusOr<Session::Orders> orders = member_->session().orders();
    return stop() || (orders.ok() && orders->drain);
  };
  while (!told_to_stop()) {
    if (AwaitEnd(kStopPoll)) return;
    if (!SiteStatus().ok())
      return member_->CancelExchange();  // Nothing else would end a wait for answers.
  }
  member_->session().RequestDrain();
  if (AwaitEnd(options_.drain_timeout)) return;
  member_->telemetry().Record(
      "transfers_cut",
      absl::StrCat("the transfers did not end within ",
                   absl::FormatDuration(options_.drain_timeout), ": they stay in the checkpoint"),
      nlohmann::json::object());
  member_->CancelExchange();
}

bool TrainingRun::AwaitEnd(absl::Duration timeout) {
  absl::MutexLock lock(&ended_mutex_);
  return ended_mutex_.AwaitWithTimeout(absl::Condition(&ended_), timeout);
}

absl::Status TrainingRun::TrainSteps() {
  // From Ready on others wait for what this worker sends; should it die, its successor must send
  // the same, of the same windows.
  const bool begins = member_->anew() || member_->took_other_part();
  if (begins && WritesCheckpoints()) RETURN_IF_ERROR(Checkpoint(/*must=*/true));
  member_->Ready();
  bool begun = false;
  for (;;) {
    ASSIGN_OR_RETURN(const RunMember::Turn turn, member_->NextTurn(absl::Seconds(1)));
    RETURN_IF_ERROR(SiteStatus());
    if (turn == RunMember::Turn::kFinished) return absl::OkStatus();
    if (turn == RunMember::Turn::kDrain) {
      drained_ = true;
      return absl::OkStatus();
    }
    if (turn != RunMember::Turn::kTrain) continue;
    if (!begun) {
      begun = true;
      if (EvaluatesHere() && member_->step() == 0) RETURN_IF_ERROR(Evaluate());
      member_->report().StartClock();
      last_checkpoint_ = clock_.Monotonic();
    }
    RETURN_IF_ERROR(StepOnce());
  }
}

absl::Status TrainingRun::StepOnce() {
  const int64_t former_step = member_->step();
  const int64_t step = member_->NextStep();
  const absl::Duration before = clock_.Monotonic();
  member_->telemetry().StepBegins(step);
  absl::StatusOr<StepReport> report = trainer_->Step(step, member_->sync().next_draw());
  member_->telemetry().StepEnds();
  RETURN_IF_ERROR(Annotate(report.status(), absl::StrCat("step ", step)));
  absl::Duration step_time = clock_.Monotonic() - before;
  if (step_time < options_.min_step_time) {
    absl::SleepFor(options_.min_step_time - step_time);
    step_time = clock_.Monotonic() - before;
  }
  ASSIGN_OR_RETURN(
      const bool goes_on,
      member_->StepDone({.tokens = report->tokens, .draws = report->draws, .time = step_time}));
  if (!goes_on) return absl::OkStatus();
  Throttle(report->tokens, step_time);
  StepFigures figures;
  figures.loss = report->loss;
  if (report->update.has_value()) {
    figures.learning_rate = report->update->learning_rate;
    figures.gradient_norm = report->update->gradient_norm;
  }
  member_->report().Step(member_->standing(), figures);
  const auto is_due = [&](int64_t every) {
    return every > 0 && step / every != former_step / every && step < config().train().steps();
  };
  if (EvaluatesHere() && is_due(config().train().evaluate_every_steps())) {
    RETURN_IF_ERROR(Evaluate());
  }
  if (WritesCheckpoints() &&
      clock_.Monotonic() - last_checkpoint_ >= options_.checkpoint_interval) {
    RETURN_IF_ERROR(Checkpoint(/*must=*/false));
  }
  return absl::OkStatus();
}

void TrainingRun::Throttle(int64_t tokens, absl::Duration step_time) {
  if (options_.max_tokens_per_second <= 0) return;
  const absl::Duration least =
      absl::Seconds(static_cast<double>(tokens) / options_.max_tokens_per_second);
  if (least > step_time) absl::SleepFor(least - step_time);
}

absl::Status TrainingRun::Evaluate() {
  const absl::Duration before = clock_.Monotonic();
  ASSIGN_OR_RETURN(const std::span<const float> published, member_->sync().published());
  ASSIGN_OR_RETURN(const std::optional<double> loss, trainer_->Evaluate(published));
  member_->report().CountEvaluation(clock_.Monotonic() - before);
  return loss.has_value() ? member_->report().Evaluated(member_->step(), *loss) : absl::OkStatus();
}

absl::Status TrainingRun::Checkpoint(bool must) {
  WorkerCheckpoint checkpoint;
  checkpoint.run_id = member_->run().run_id();
  checkpoint.worker_id = options_.member.worker_id;
  checkpoint.config = config();
  checkpoint.parameters.resize(static_cast<size_t>(member_->plan().arena_size()));
  RETURN_IF_ERROR(trainer_->backend().CopyParameters(checkpoint.parameters));
  ASSIGN_OR_RETURN(OptimizerState optimizer, trainer_->backend().SaveOptimizer());
  checkpoint.optimizer_updates = optimizer.updates;
  checkpoint.first_moments = std::move(optimizer.first_moments);
  checkpoint.second_moments = std::move(optimizer.second_moments);
  ASSIGN_OR_RETURN(RunMember::Place place, member_->Save());
  checkpoint.data_slot = place.data_slot;
  checkpoint.step = place.step;
  checkpoint.tokens = place.tokens;
  checkpoint.pace_milli = place.pace_milli;
  checkpoint.pace_carry_milli = place.pace_carry_milli;
  checkpoint.sync = std::move(place.sync);
  const absl::Status written = WriteWorkerCheckpoint(file_system_, CheckpointPath(), checkpoint);
  last_checkpoint_ = clock_.Monotonic();
  if (!written.ok()) {
    if (must) return written;
    member_->telemetry().Record(
        "checkpoint_failed",
        absl::StrCat("no checkpoint could be written, the one before it stands: ",
                     written.message(), "; training goes on, and tries again in ",
                     absl::FormatDuration(options_.checkpoint_interval)),
        {{"step", place.step}, {"reason", std::string(written.message())}});
    return absl::OkStatus();
  }
  member_->report().CheckpointWritten(place.step);
  return absl::OkStatus();
}

absl::Status TrainingRun::Finish() {
  const absl::Status status = member_->Finish(drained_);
  if (absl::IsCancelled(status) && member_->session().orders().ok()) {
    drained_ = true;
  } else {
    RETURN_IF_ERROR(status);
  }
  RETURN_IF_ERROR(Checkpoint(/*must=*/true));
  if (!drained_ && EvaluatesHere()) RETURN_IF_ERROR(Evaluate());
  return absl::OkStatus();
}

namespace {

using nlohmann::json;

constexpr double kSampleTemperature = 0.7;
constexpr int64_t kPromptTokens = 64;

}  // namespace

std::string TrainingRun::Sample() {
  // Ids are no text: for the tokens of others there is python3 -m causeway.generate.
  if (!dataset_.is_bytes()) return "";
  // The beginning of the held-out text: what the model knows to continue, and has not seen.
  const ShardSequence& text =
      dataset_.held_out()->tokens() >= kPromptTokens ? *dataset_.held_out() : *dataset_.train();
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(text.tokens(), kPromptTokens)));
  if (!text.Read(0, config().model().vocabulary_size(), tokens).ok()) return "";
  const absl::StatusOr<std::span<const float>> published = member_->sync().published();
  if (!published.ok()) return "";
  CpuDecoder<float> decoder(config().model(), member_->plan(), /*sequences=*/1, pool_.get());
  const std::vector<int32_t> continuation =
      Generate(decoder, *published, std::array{tokens},
               {.tokens = options_.sample_tokens,
                .temperature = kSampleTemperature,
                .seed = config().train().seed(),
                // A model may have more tokens than there are bytes.
                .known_tokens = static_cast<int32_t>(dataset_.vocabulary_size())})
          .front();
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  return {tokens.begin(), tokens.end()};
}

absl::Status TrainingRun::WriteSummary() {
  json summary = member_->report().Summary(member_->standing());
  if (EvaluatesHere() && options_.sample_tokens > 0) summary["sample"] = Sample();
  return WriteFileAtomically(
      file_system_, JoinPath(options_.member.output, "summary.json"),
      absl::string_view(summary.dump(2, ' ', false, json::error_handler_t::replace) + "\n"));
}

}  // namespace causeway::worker
