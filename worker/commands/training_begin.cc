// How TrainingRun begins: what it checks and opens, the join, and what it continues from.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/byte_buffer.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "common/rpc/channel.h"
#include "common/rpc/tcp_links.h"
#include "common/rpc/wire.h"
#include "common/telemetry/log.h"
#include "worker/commands/join_checks.h"
#include "worker/commands/training_run.h"
#include "worker/sync/encoded_object.h"

namespace causeway::worker {
namespace {

// Beyond the lease, for a coordinator that is about to come back.
constexpr absl::Duration kFirstAttachPatience = absl::Seconds(10);
// The session has a connection of its own, which no bulk transfer holds up.
constexpr int kSessionConnection = 0;
constexpr int kFirstLane = 1;

double UnixSeconds(Clock& clock) { return absl::ToDoubleSeconds(clock.Now() - absl::UnixEpoch()); }

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingRun>> TrainingRun::Join(const TrainingOptions& options,
                                                               FileSystem& file_system,
                                                               Clock& clock) {
  RETURN_IF_ERROR(CheckName("--id", options.worker_id));
  RETURN_IF_ERROR(Annotate(CheckAddress(options.coordinator, false), "--coordinator"));
  ASSIGN_OR_RETURN(const DeviceChoice devices, ResolveDevices(options.devices, file_system));
  ASSIGN_OR_RETURN(Dataset dataset, Dataset::Open(file_system, options.data, options.shard_format));

  ASSIGN_OR_RETURN(ChannelSecurity security,
                   MakeChannelSecurity(options.security, options.coordinator, clock.Now()));
  RETURN_IF_ERROR(CheckIdentity(security, options.worker_id));
  for (const std::string& warning : security.warnings) Log().warn("{}", warning);
  std::shared_ptr<grpc::Channel> channel =
      MakeChannel(options.coordinator, kSessionConnection, security);
  std::unique_ptr<v1::Session::Stub> stub = v1::Session::NewStub(channel);
  ASSIGN_OR_RETURN(v1::DescribeResponse description, DescribeOrExplain(*stub, options));
  ASSIGN_OR_RETURN(FragmentPlan plan, CheckRun(description));
  RETURN_IF_ERROR(dataset.CheckVocabulary(description.config().model().vocabulary_size()));
  if (description.config().train().document_masking()) {
    RETURN_IF_ERROR(dataset.FindDocuments(options.document_mark));
  }

  auto run = std::unique_ptr<TrainingRun>(new TrainingRun(options, std::move(security), file_system,
                                                          clock, std::move(description),
                                                          std::move(plan), std::move(dataset)));
  RETURN_IF_ERROR(run->pool_->started());
  ASSIGN_OR_RETURN(run->telemetry_,
                   RunTelemetry::Open({.metrics_address = options.metrics_address,
                                       .metrics_address_file = options.metrics_address_file,
                                       .tensorboard = options.tensorboard,
                                       .output = options.output,
                                       .worker_id = options.worker_id,
                                       .cert_file = options.security.cert_file,
                                       .file_system = &file_system,
                                       .clock = &clock}));
  run->session_channel_ = std::move(channel);
  run->session_stub_ = std::move(stub);
  RETURN_IF_ERROR(run->ReadTasks());
  RETURN_IF_ERROR(run->OpenOutput());
  std::optional<WorkerCheckpoint> checkpoint;
  if (file_system.Exists(run->CheckpointPath())) {
    ASSIGN_OR_RETURN(checkpoint, ReadWorkerCheckpoint(file_system, run->CheckpointPath()));
    if (checkpoint->run_id != run->run_.run_id() || checkpoint->worker_id != options.worker_id) {
      return absl::FailedPreconditionError(
          absl::StrCat(run->CheckpointPath(), " belongs to worker ", checkpoint->worker_id,
                       " of run ", checkpoint->run_id, ", not to worker ", options.worker_id,
                       " of run ", run->run_.run_id(), ": choose another --out, or remove it"));
    }
    if (RunConfigHash(checkpoint->config) != run->run_.config_hash()) {
      return absl::FailedPreconditionError(
          absl::StrCat(run->CheckpointPath(),
                       " has another configuration than the run: choose another --out, or "
                       "remove it"));
    }
  }

  RETURN_IF_ERROR(run->OpenBackend(devices));

  Session::Options session;
  session.stub = run->session_stub_.get();
  session.events = &run->telemetry_->events();
  session.on_stream = [telemetry = run->telemetry_.get()](bool stands) {
    telemetry->SetAttached(stands);
  };
  v1::Join& join = session.join;
  join.set_worker_id(options.worker_id);
  join.set_run_id(run->run_.run_id());
  join.set_wire_version(kWireVersion);
  join.set_config_hash(run->run_.config_hash());
  join.set_plan_hash(run->plan_.hash());
  join.set_data_vocabulary_size(run->run_.config().model().vocabulary_size());
  join.set_software_version(kSoftwareVersion);
  join.set_device(run->backend_->Describe());
  join.set_threads(options.threads);
  join.set_own_data(options.own_data);
  join.set_data_fingerprint(run->dataset_.train()->Fingerprint());
  session.progress.set_checkpoint_step(-1);
  if (checkpoint.has_value()) {
    join.set_has_checkpoint(true);
    join.set_resume_step(checkpoint->step);
    session.progress.set_step(checkpoint->step);
    session.progress.set_tokens(checkpoint->tokens);
    session.progress.set_pace_milli(checkpoint->pace_milli);
    session.progress.set_checkpoint_step(checkpoint->step);
  }
  const v1::RunConfig& config = run->run_.config();
  session.max_steps_behind = config.sync().steps_between_syncs();
  session.first_attach_patience =
      absl::Milliseconds(config.membership().lease_ms()) + kFirstAttachPatience;
  ASSIGN_OR_RETURN(run->session_, Session::Attach(std::move(session)));
  const absl::Status begun = run->Begin(std::move(checkpoint));
  if (!begun.ok()) {
    // The id is free again at once, not when the lease ends.
    run->session_->Leave(v1::Leave::FAILED, std::string(begun.message()));
    return begun;
  }
  return run;
}

absl::Status TrainingRun::OpenBackend(const DeviceChoice& devices) {
  const std::string plan_file = JoinPath(options_.output, "matrix_products.json");
  if (options_.site == nullptr) {
    ASSIGN_OR_RETURN(backend_, worker::MakeBackend(devices, run_.config(), plan_, pool_.get(),
                                                   file_system_, plan_file));
  } else {
    ASSIGN_OR_RETURN(backend_, options_.site->MakeBackend(run_.config(), plan_, pool_.get(),
                                                          file_system_, plan_file));
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::SiteStatus() const {
  return options_.site == nullptr ? absl::OkStatus() : options_.site->status();
}

absl::Status TrainingRun::OpenOutput() {
  RETURN_IF_ERROR(file_system_.CreateFolders(options_.output));
  ASSIGN_OR_RETURN(output_lock_, file_system_.Lock(options_.output));
  return absl::OkStatus();
}

absl::Status TrainingRun::Begin(std::optional<WorkerCheckpoint> checkpoint) {
  const v1::Welcome& welcome = session_->welcome();
  const v1::RunConfig& config = run_.config();
  data_slot_ = welcome.data_slot();
  // Not before the coordinator has welcomed this worker: who is refused leaves no trace.
  RETURN_IF_ERROR(telemetry_->Begin(run_.run_id(), config.train().steps(),
                                    checkpoint.has_value() ? checkpoint->step : 0));
  telemetry_->Record("attached",
                     absl::StrCat("attached as incarnation ", welcome.incarnation(),
                                  "; the run is at step ", welcome.run_step()),
                     {{"incarnation", welcome.incarnation()},
                      {"run_step", welcome.run_step()},
                      {"data_slot", data_slot_}});
  Log().info("training on {}", backend_->Describe());
  ASSIGN_OR_RETURN(trainer_, Trainer::Create(config, dataset_, DataPart(), std::move(backend_)));
  RETURN_IF_ERROR(MakeLink());
  RETURN_IF_ERROR(OpenMergeRecord(!checkpoint.has_value()));
  RETURN_IF_ERROR(MakeSync());
  session_->OnFailure([this](const absl::Status& status) {
    telemetry_->Record("session_failed", absl::StrCat("the session failed: ", status.message()),
                       {{"code", std::string(absl::StatusCodeToString(status.code()))},
                        {"reason", std::string(status.message())}});
    CancelExchange();
  });

  if (checkpoint.has_value()) {
    RETURN_IF_ERROR(trainer_->backend().RestoreOptimizer(
        checkpoint->optimizer_updates, checkpoint->first_moments, checkpoint->second_moments));
    progress_.tokens = checkpoint->tokens;
    counter_ = StepCounter(checkpoint->step, checkpoint->pace_milli, checkpoint->pace_carry_milli);
  }
  const int64_t behind = checkpoint.has_value() ? welcome.run_step() - checkpoint->step : 0;
  if (checkpoint.has_value() &&
      (welcome.resumes() || behind <= config.sync().steps_between_syncs())) {
    RETURN_IF_ERROR(trainer_->backend().SetParameters(checkpoint->parameters));
    progress_.step = checkpoint->step;
    progress_.checkpoint_step = checkpoint->step;
    const bool same_part = checkpoint->data_slot == data_slot_ || options_.own_data;
    const absl::Status restored = sync_->Restore(std::move(checkpoint->sync), progress_.step);
    anew_ = absl::IsOutOfRange(restored);
    if (anew_) {
      RETURN_IF_ERROR(MakeSync());
    } else {
      RETURN_IF_ERROR(restored);
      if (!same_part) sync_->UseData(DataPart(), welcome.next_draw());
      telemetry_->Record("checkpoint_restored",
                         absl::StrCat("continuing from the checkpoint at step ", progress_.step),
                         {{"step", progress_.step}});
    }
  }
  if (anew_) {
    if (checkpoint.has_value()) {
      telemetry_->Record("checkpoint_stale",
                         absl::StrCat("the checkpoint is ", behind,
                                      " steps behind the run: its moments are kept, the weights "
                                      "are taken from the coordinator"),
                         {{"behind", behind}});
    }
    sync_->UseData(DataPart(), welcome.next_draw());
    ASSIGN_OR_RETURN(progress_.step, sync_->Fetch(welcome.run_step()));
    JudgeBuffers();  // The state was the first to cross the link.
    telemetry_->Record("state_fetched",
                       absl::StrCat("has the published state, joining at step ", progress_.step),
                       {{"step", progress_.step}});
    counter_ = StepCounter(progress_.step, counter_.pace_milli());
  }
  progress_.first_step = progress_.step;
  progress_.first_tokens = progress_.tokens;
  heartbeat_.set_step(progress_.step);
  heartbeat_.set_tokens(progress_.tokens);
  heartbeat_.set_pace_milli(counter_.pace_milli());
  heartbeat_.set_checkpoint_step(progress_.checkpoint_step);
  session_->SetProgress(heartbeat_);
  RETURN_IF_ERROR(OpenMetrics());
  nlohmann::json start = {{"kind", "start"},
                          {"unix_s", UnixSeconds(clock_)},
                          {"worker", options_.worker_id},
                          {"parameters", plan_.parameters()},
                          {"steps", config.train().steps()},
                          {"first_step", progress_.step},
                          {"data_slot", data_slot_},
                          {"threads", options_.threads}};
  if (security_.certificate.has_value()) {
    start["certificate_end_unix_s"] = absl::ToUnixSeconds(security_.certificate->not_after);
  }
  return metrics_->Append(start);
}

absl::Status TrainingRun::OpenMergeRecord(bool anew) {
  const v1::SyncConfig& sync = run_.config().sync();
  if (MaxOverlapSteps(sync) == sync.overlap_steps()) {
    if (options_.replay_merges.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--replay_merges is for runs with sync.max_overlap_steps above sync.overlap_steps: any "
        "other repeats without; leave it out");
  }
  ASSIGN_OR_RETURN(
      merge_record_,
      MergeRecord::Open(file_system_, JoinPath(options_.output, "merges.jsonl"), anew));
  recorded_merges_ = merge_record_->merges();
  if (options_.replay_merges.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(recorded_merges_, ReadMergeRecord(file_system_, options_.replay_merges,
                                                     /*may_be_absent=*/false));
  return absl::OkStatus();
}

void TrainingRun::RecordMerge(const RecordedMerge& merge) {
  const absl::Status recorded = merge_record_->Add(merge);
  if (recorded.ok() == merges_recorded_.ok()) return;
  merges_recorded_ = recorded;
  if (recorded.ok()) return;
  Log().warn("merges are not recorded ({}): should this worker be killed, it will not repeat them",
             std::string(recorded.message()));
}

absl::Status TrainingRun::MakeLink() {
  ASSIGN_OR_RETURN(std::vector<TcpAddress> addresses, ResolveAddress(options_.coordinator));
  Link::Options link;
  link.make_channel = [this](int lane) {
    return MakeChannel(options_.coordinator, kFirstLane + lane, security_);
  };
  link.connections = options_.connections;
  link.max_upload_bytes_per_second = options_.max_upload_bytes_per_second;
  link.max_download_bytes_per_second = options_.max_download_bytes_per_second;
  link.tcp = [meter = std::make_shared<TcpLinkMeter>(
                  std::move(addresses), options_.congestion_control)] { return meter->Sample(); };
  link.clock = &clock_;
  const absl::StatusOr<SocketBuffers> buffers = ReadSocketBuffers(file_system_);
  if (buffers.ok()) {
    link.send_buffer_bytes = buffers->send.largest;
    socket_buffers_ = *buffers;
  }
  link_ = std::make_unique<Link>(std::move(link));
  return absl::OkStatus();
}

absl::Status TrainingRun::MakeSync() {
  sync_.reset();  // Cancels the exchange that it uses.
  replica_.reset();
  ASSIGN_OR_RETURN(replica_, trainer_->backend().MakeReplica());
  KeepFreedBlocks(ObjectBytesInFlight(plan_, run_.config().sync()));
  auto exchange =
      std::make_unique<GrpcExchange>(GrpcExchange::Options{.link = link_.get(),
                                                           .session = session_.get(),
                                                           .plan = &plan_,
                                                           .run_id = run_.run_id(),
                                                           .worker_id = options_.worker_id,
                                                           .sync = run_.config().sync()});
  {
    absl::MutexLock lock(&exchange_mutex_);
    exchange_.swap(exchange);
  }
  SyncEngine::Options sync;
  sync.config = run_.config().sync();
  sync.plan = &plan_;
  sync.replica = replica_.get();
  sync.exchange = exchange_.get();
  sync.clock = &clock_;
  sync.max_advance = MaxAdvance();
  sync.data_slot = DataPart();
  sync.recorded_merges = recorded_merges_;
  if (merge_record_ != nullptr) {
    sync.observer.merged = [this](int64_t step, const SyncEvent& event) {
      RecordMerge({step, event});
    };
  }
  sync.observer.late = [this](const SyncEvent& event) {
    telemetry_->Record(
        "delta_late",
        absl::StrCat("the delta of fragment ", event.fragment, " came too late for round ",
                     event.round, "; it travels with the next"),
        {{"fragment", event.fragment}, {"round", event.round}});
  };
  sync_ = std::make_unique<SyncEngine>(std::move(sync));
  return sync_->started();
}

}  // namespace causeway::worker
