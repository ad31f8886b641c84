#include "worker/commands/training_run.h"

#include "common/base/text.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"
#include "worker/train/generate.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<TrainingRun>> TrainingRun::Join(const TrainingOptions& options,
                                                               FileSystem& file_system,
                                                               Clock& clock) {
  RETURN_IF_ERROR(CheckName("--id", options.member.worker_id));
  RETURN_IF_ERROR(Annotate(SplitAddresses(options.member.coordinator).status(), "--coordinator"));
  ASSIGN_OR_RETURN(const DeviceChoice devices, ResolveDevices(options.devices, file_system));
  ASSIGN_OR_RETURN(Dataset dataset, Dataset::Open(file_system, options.data, options.shard_format));

  ASSIGN_OR_RETURN(ReachedRun reached, ReachRun(options.member));
  ASSIGN_OR_RETURN(std::unique_ptr<RunMember> member,
                   RunMember::Create(options.member, std::move(reached), file_system, clock));
  RETURN_IF_ERROR(dataset.CheckVocabulary(member->config().model().vocabulary_size()));
  const bool masks = member->config().train().document_masking();
  for (const std::string& sentence :
       dataset.CountsForNothing(options.document_mark.has_value(), masks)) {
    Log().warn("{}", sentence);
  }
  if (options.sample_tokens > 0 && !dataset.is_bytes()) {
    Log().warn(
        "--sample_tokens counts for nothing: the data's tokens are no bytes, and no text "
        "here. python3 -m causeway.generate makes text of a checkpoint");
  }
  if (masks) RETURN_IF_ERROR(dataset.FindDocuments(options.document_mark));

  auto run = std::unique_ptr<TrainingRun>(
      new TrainingRun(options, std::move(member), file_system, clock, std::move(dataset)));
  RETURN_IF_ERROR(run->pool_->started());
  RETURN_IF_ERROR(run->member_->OpenTelemetry());
  RETURN_IF_ERROR(run->OpenOutput());
  ASSIGN_OR_RETURN(std::optional<WorkerCheckpoint> checkpoint, run->ReadCheckpoint());
  RETURN_IF_ERROR(run->OpenBackend(devices));

  std::optional<RunMember::Place> place;
  if (checkpoint.has_value()) place = std::move(static_cast<TrainingPlace&>(*checkpoint));
  RunMember::Description description;
  description.device = run->backend_->Describe();
  description.data_fingerprint = run->dataset_.train()->Fingerprint();
  RETURN_IF_ERROR(run->member_->Attach(description, place.has_value() ? &*place : nullptr));
  RETURN_IF_ERROR(run->member_->Begin(
      run->MakeHooks(checkpoint.has_value() ? &*checkpoint : nullptr), std::move(place)));
  return run;
}

absl::StatusOr<std::optional<WorkerCheckpoint>> TrainingRun::ReadCheckpoint() {
  const std::string path = CheckpointPath();
  if (!file_system_.Exists(path)) return std::nullopt;
  absl::StatusOr<WorkerCheckpoint> read = ReadWorkerCheckpoint(file_system_, path);
  if (absl::IsDataLoss(read.status())) {
    return absl::DataLossError(absl::StrCat(
        read.status().message(), ": remove it, and this worker joins with the published state"));
  }
  ASSIGN_OR_RETURN(WorkerCheckpoint checkpoint, std::move(read));
  const std::string& run_id = member_->run().run_id();
  const std::string& worker_id = options_.member.worker_id;
  if (checkpoint.run_id != run_id || checkpoint.worker_id != worker_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " belongs to worker ", checkpoint.worker_id, " of run ", checkpoint.run_id,
        ", not to worker ", worker_id, " of run ", run_id, ": choose another --out, or remove it"));
  }
  if (RunConfigHash(checkpoint.config) != member_->run().config_hash()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     " has another configuration than the run: choose another --out, or "
                     "remove it"));
  }
  return checkpoint;
}

RunMember::Hooks TrainingRun::MakeHooks(const WorkerCheckpoint* checkpoint) {
  RunMember::Hooks hooks;
  hooks.make_replica = [this] { return trainer_->backend().MakeReplica(); };
  hooks.use_data_part = [this, checkpoint](int part) -> absl::Status {
    if (trainer_ != nullptr) return trainer_->UseDataSlot(dataset_, part);
    Log().info("training on {}", backend_->Describe());
    ASSIGN_OR_RETURN(trainer_, Trainer::Create(config(), dataset_, part, std::move(backend_)));
    if (checkpoint == nullptr) return absl::OkStatus();
    return trainer_->backend().RestoreOptimizer(
        checkpoint->optimizer_updates, checkpoint->first_moments, checkpoint->second_moments);
  };
  hooks.restore_parameters = [this, checkpoint] {
    return trainer_->backend().SetParameters(checkpoint->parameters);
  };
  hooks.checkpoint = [this] {
    return WritesCheckpoints() ? Checkpoint(/*must=*/false) : absl::OkStatus();
  };
  hooks.started_anew = [this]() -> absl::Status {
    if (WritesCheckpoints()) RETURN_IF_ERROR(Checkpoint(/*must=*/false));
    member_->Ready();
    return absl::OkStatus();
  };
  return hooks;
}

absl::Status TrainingRun::OpenBackend(const DeviceChoice& devices) {
  const std::string plan_file = JoinPath(options_.member.output, "matrix_products.json");
  if (options_.site == nullptr) {
    ASSIGN_OR_RETURN(backend_, worker::MakeBackend(devices, config(), member_->plan(), pool_.get(),
                                                   file_system_, plan_file));
  } else {
    ASSIGN_OR_RETURN(backend_, options_.site->MakeBackend(config(), member_->plan(), plan_file));
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::SiteStatus() const {
  return options_.site == nullptr ? absl::OkStatus() : options_.site->status();
}

absl::Status TrainingRun::OpenOutput() {
  RETURN_IF_ERROR(file_system_.CreateFolders(options_.member.output));
  ASSIGN_OR_RETURN(output_lock_, file_system_.Lock(options_.member.output));
  return absl::OkStatus();
}

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
  PeriodicThread watcher;
  absl::Status status = watcher.Start(absl::ZeroDuration(), [&] { return WatchForStop(stop); });
  if (status.ok()) status = TrainSteps();
  if (!status.ok() && !SiteStatus().ok()) status = SiteStatus();
  if (absl::IsCancelled(status) && member_->session().orders().ok()) {
    drained_ = true;  // Nothing but the watcher cancels while the session is well.
    status = absl::OkStatus();
  }
  if (status.ok()) status = Finish();
  watcher.Stop();
  if (!status.ok()) {
    if (!SiteStatus().ok()) status = SiteStatus();
    // A process that is lost may be back soon, with all others: then the run has waited for this
    // worker, which continues from its checkpoint.
    return member_->Fail(status, /*silently=*/!SiteStatus().ok());
  }
  member_->Leave(drained_);
  return WriteSummary();
}

absl::Duration TrainingRun::WatchForStop(const std::function<bool()>& stop) {
  if (told_to_stop_) {
    member_->telemetry().Record(
        "transfers_cut",
        absl::StrCat("the transfers did not end within ",
                     absl::FormatDuration(options_.drain_timeout), ": they stay in the checkpoint"),
        nlohmann::json::object());
  } else {
    const absl::StatusOr<Session::Orders> orders = member_->session().orders();
    told_to_stop_ = stop() || (orders.ok() && orders->drain);
    if (told_to_stop_) {
      member_->session().RequestDrain();
      return options_.drain_timeout;
    }
    if (SiteStatus().ok()) return kStopPoll;  // Else nothing would end a wait for answers.
  }
  member_->CancelExchange();
  return absl::InfiniteDuration();
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
  if (loss.has_value()) member_->report().Evaluated(member_->step(), *loss);
  return absl::OkStatus();
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
  ASSIGN_OR_RETURN(static_cast<TrainingPlace&>(checkpoint), member_->Save());
  const absl::Status written = WriteWorkerCheckpoint(file_system_, CheckpointPath(), checkpoint);
  last_checkpoint_ = clock_.Monotonic();
  if (!written.ok()) {
    if (must) return written;
    member_->telemetry().Record(
        "checkpoint_failed",
        absl::StrCat("no checkpoint could be written, the one before it stands: ",
                     written.message(), "; training goes on, and tries again in ",
                     absl::FormatDuration(options_.checkpoint_interval)),
        {{"step", checkpoint.step}, {"reason", std::string(written.message())}});
    return absl::OkStatus();
  }
  member_->report().CheckpointWritten(checkpoint.step);
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
