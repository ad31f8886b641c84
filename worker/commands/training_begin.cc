// How TrainingRun begins: what it checks and opens, the join, and what it continues from.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"
#include "worker/commands/training_run.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<TrainingRun>> TrainingRun::Join(const TrainingOptions& options,
                                                               FileSystem& file_system,
                                                               Clock& clock) {
  RETURN_IF_ERROR(CheckName("--id", options.member.worker_id));
  RETURN_IF_ERROR(Annotate(SplitAddresses(options.member.coordinator).status(), "--coordinator"));
  ASSIGN_OR_RETURN(const DeviceChoice devices, ResolveDevices(options.devices, file_system));
  ASSIGN_OR_RETURN(Dataset dataset, Dataset::Open(file_system, options.data, options.shard_format));

  ASSIGN_OR_RETURN(ReachedRun reached, ReachRun(options.member, clock));
  ASSIGN_OR_RETURN(std::unique_ptr<RunMember> member,
                   RunMember::Create(options.member, std::move(reached), file_system, clock));
  RETURN_IF_ERROR(dataset.CheckVocabulary(member->config().model().vocabulary_size()));
  if (member->config().train().document_masking()) {
    RETURN_IF_ERROR(dataset.FindDocuments(options.document_mark));
  }

  auto run = std::unique_ptr<TrainingRun>(
      new TrainingRun(options, std::move(member), file_system, clock, std::move(dataset)));
  RETURN_IF_ERROR(run->pool_->started());
  RETURN_IF_ERROR(run->member_->OpenTelemetry());
  RETURN_IF_ERROR(run->OpenOutput());
  ASSIGN_OR_RETURN(std::optional<WorkerCheckpoint> checkpoint, run->ReadCheckpoint());
  RETURN_IF_ERROR(run->OpenBackend(devices));

  std::optional<RunMember::Place> place;
  if (checkpoint.has_value()) {
    place = RunMember::Place{.step = checkpoint->step,
                             .tokens = checkpoint->tokens,
                             .pace_milli = checkpoint->pace_milli,
                             .pace_carry_milli = checkpoint->pace_carry_milli,
                             .data_slot = checkpoint->data_slot,
                             .sync = std::move(checkpoint->sync)};
  }
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
  ASSIGN_OR_RETURN(WorkerCheckpoint checkpoint, ReadWorkerCheckpoint(file_system_, path));
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
    ASSIGN_OR_RETURN(backend_, options_.site->MakeBackend(config(), member_->plan(), pool_.get(),
                                                          file_system_, plan_file));
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

}  // namespace causeway::worker
