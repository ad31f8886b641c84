#include "worker/commands/training_run.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/byte_buffer.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/params/run_config.h"
#include "common/rpc/channel.h"
#include "common/rpc/tcp_links.h"
#include "common/rpc/wire.h"
#include "common/telemetry/log.h"
#include "worker/commands/join_checks.h"
#include "worker/sync/encoded_object.h"

namespace causeway::worker {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(100);
// Beyond the lease, for a coordinator that is about to come back.
constexpr absl::Duration kFirstAttachPatience = absl::Seconds(10);
// Weight of an inner step in the smoothed step time.
constexpr double kNewestStep = 1.0 / 16;
// The session has a connection of its own, which no bulk transfer holds up.
constexpr int kSessionConnection = 0;
constexpr int kFirstLane = 1;

double UnixSeconds(Clock& clock) { return absl::ToDoubleSeconds(clock.Now() - absl::UnixEpoch()); }

}  // namespace

TrainingRun::TrainingRun(const TrainingOptions& options, ChannelSecurity security,
                         FileSystem& file_system, Clock& clock, v1::DescribeResponse run,
                         FragmentPlan plan, Dataset dataset)
    : options_(options),
      security_(std::move(security)),
      expiry_(options.security.cert_file, clock),
      file_system_(file_system),
      clock_(clock),
      run_(std::move(run)),
      plan_(std::move(plan)),
      dataset_(std::move(dataset)),
      pool_(std::make_unique<ThreadPool>(options.threads)) {}

TrainingRun::~TrainingRun() {
  sync_.reset();     // Its threads use the session.
  session_.reset();  // Its threads reach for the exchange.
}

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

  ASSIGN_OR_RETURN(run->backend_,
                   MakeBackend(devices, run->run_.config(), run->plan_, run->pool_.get(),
                               file_system, JoinPath(options.output, "matrix_products.json")));

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

void TrainingRun::CancelExchange() {
  absl::MutexLock lock(&exchange_mutex_);
  exchange_->Cancel();
}

absl::Status TrainingRun::StartAnew(const v1::Welcome& welcome, int64_t next_draw) {
  telemetry_->Record(
      "started_anew",
      absl::StrCat("the run went on without this worker, from step ", progress_.step, " to ",
                   welcome.run_step(), ": it takes the published state and goes on there"),
      {{"from_step", progress_.step}, {"to_step", welcome.run_step()}});
  data_slot_ = welcome.data_slot();
  RETURN_IF_ERROR(trainer_->UseDataSlot(dataset_, DataPart()));
  RETURN_IF_ERROR(MakeSync());
  sync_->UseData(DataPart(), next_draw);
  ASSIGN_OR_RETURN(progress_.step, sync_->Fetch(welcome.run_step()));
  counter_ = StepCounter(progress_.step, counter_.pace_milli());
  if (WritesCheckpoints()) RETURN_IF_ERROR(Checkpoint());
  session_->Ready(progress_.step, /*anew=*/true);
  return absl::OkStatus();
}

absl::Status TrainingRun::ObeyDataSlot(const Session::Orders& orders) {
  if (orders.data_slot == data_slot_) return absl::OkStatus();
  data_slot_ = orders.data_slot;
  if (options_.own_data) return absl::OkStatus();
  RETURN_IF_ERROR(trainer_->UseDataSlot(dataset_, data_slot_));
  sync_->UseData(data_slot_, orders.next_draw);
  telemetry_->Record(
      "data_part_changed",
      absl::StrCat("from step ", progress_.step, " on, part ", data_slot_, " of the data"),
      {{"step", progress_.step}, {"data_slot", data_slot_}});
  // A successor draws the same.
  return WritesCheckpoints() ? Checkpoint() : absl::OkStatus();
}

absl::Status TrainingRun::Train(bool (*stop)()) {
  absl::StatusOr<std::thread> watcher = StartThread([&] { WatchForStop(stop); });
  absl::Status status = watcher.ok() ? TrainSteps() : watcher.status();
  if (absl::IsCancelled(status) && session_->orders().ok()) {
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
    // The session's own failure is the cause of whatever else was cancelled.
    const absl::Status session = session_->orders().status();
    if (!session.ok()) status = session;
    telemetry_->Record("failed", absl::StrCat("training failed: ", status.message()),
                       {{"step", progress_.step},
                        {"code", std::string(absl::StatusCodeToString(status.code()))},
                        {"reason", std::string(status.message())}});
    session_->Leave(v1::Leave::FAILED, std::string(status.message()));
    return status;
  }
  session_->Leave(drained_ ? v1::Leave::DRAINED : v1::Leave::FINISHED, "");
  if (drained_) {
    telemetry_->Record("left", absl::StrCat("left the run at step ", progress_.step),
                       {{"step", progress_.step}});
  } else {
    telemetry_->Record("finished", absl::StrCat("finished at step ", progress_.step),
                       {{"step", progress_.step}});
  }
  return WriteSummary();
}

void TrainingRun::WatchForStop(bool (*stop)()) {
  const auto told_to_stop = [&] {
    const absl::StatusOr<Session::Orders> orders = session_->orders();
    return stop() || (orders.ok() && orders->drain);
  };
  while (!told_to_stop()) {
    if (AwaitEnd(kStopPoll)) return;
  }
  session_->RequestDrain();
  if (AwaitEnd(options_.drain_timeout)) return;
  telemetry_->Record(
      "transfers_cut",
      absl::StrCat("the transfers did not end within ",
                   absl::FormatDuration(options_.drain_timeout), ": they stay in the checkpoint"),
      nlohmann::json::object());
  CancelExchange();
}

bool TrainingRun::AwaitEnd(absl::Duration timeout) {
  absl::MutexLock lock(&ended_mutex_);
  return ended_mutex_.AwaitWithTimeout(absl::Condition(&ended_), timeout);
}

absl::Status TrainingRun::TrainSteps() {
  // From Ready on others wait for what this worker sends; should it die, its successor must send
  // the same.
  if (anew_ && WritesCheckpoints()) RETURN_IF_ERROR(Checkpoint());
  session_->Ready(progress_.step, anew_);
  const int64_t budget = run_.config().train().steps();
  bool begun = false;
  for (;;) {
    ASSIGN_OR_RETURN(const Session::Orders orders, session_->WaitForGo(absl::Seconds(1)));
    const int64_t end = orders.stop_at_step > 0 ? std::min(budget, orders.stop_at_step) : budget;
    if (progress_.step >= end) return absl::OkStatus();
    if (orders.drain) {
      drained_ = true;
      return absl::OkStatus();
    }
    if (orders.start_anew.has_value()) {
      RETURN_IF_ERROR(StartAnew(*orders.start_anew, orders.start_anew->next_draw()));
      continue;
    }
    if (!orders.started || orders.paused) continue;
    RETURN_IF_ERROR(ObeyDataSlot(orders));
    if (!begun) {
      begun = true;
      if (EvaluatesHere() && progress_.step == 0) RETURN_IF_ERROR(Evaluate());
      if (options_.eval_tasks_every > 0 && progress_.step == 0) RETURN_IF_ERROR(EvaluateTasks());
      progress_.evaluation = absl::ZeroDuration();
      progress_.start = clock_.Monotonic();
      last_line_ = progress_.start;
      last_checkpoint_ = progress_.start;
      last_line_tokens_ = progress_.tokens;
    }
    ObeyPace(orders);
    RETURN_IF_ERROR(StepOnce(end));
  }
}

int TrainingRun::MaxAdvance() const {
  return std::max(1, static_cast<int>(std::ceil(run_.config().membership().max_pace())));
}

void TrainingRun::ObeyPace(const Session::Orders& orders) {
  if (orders.pace_milli == 0 || progress_.step < orders.pace_from_step) return;
  const auto most = static_cast<int64_t>(std::max(1.0, run_.config().membership().max_pace()) *
                                         static_cast<double>(kPaceOne));
  const int64_t pace = std::clamp(orders.pace_milli, kPaceOne, most);
  if (pace == counter_.pace_milli()) return;
  counter_.SetPace(pace);
  const double ratio = static_cast<double>(pace) / static_cast<double>(kPaceOne);
  telemetry_->Record("pace_changed",
                     absl::StrCat("from step ", progress_.step, " an inner step counts for ", ratio,
                                  " steps of the schedule"),
                     {{"step", progress_.step}, {"pace", ratio}});
}

void TrainingRun::NoteStepTime(absl::Duration step_time) {
  // The first step warms caches and memory up.
  if (++progress_.inner_steps == 1) return;
  const double newest = std::max(kNewestStep, 1 / static_cast<double>(progress_.inner_steps - 1));
  progress_.inner_step_time += newest * (step_time - progress_.inner_step_time);
}

absl::Status TrainingRun::StepOnce(int64_t end) {
  const int64_t former_step = progress_.step;
  const int64_t step = counter_.Next(end);
  const absl::Duration before = clock_.Monotonic();
  telemetry_->StepBegins(step);
  absl::StatusOr<StepReport> report = trainer_->Step(step, sync_->next_draw());
  telemetry_->StepEnds();
  RETURN_IF_ERROR(Annotate(report.status(), absl::StrCat("step ", step)));
  absl::Duration step_time = clock_.Monotonic() - before;
  if (step_time < options_.min_step_time) {
    absl::SleepFor(options_.min_step_time - step_time);
    step_time = clock_.Monotonic() - before;
  }
  progress_.compute += step_time;
  NoteStepTime(step_time);
  progress_.step = counter_.Advance(end);
  progress_.tokens += report->tokens;
  const absl::Status synced = sync_->AfterStep(step, report->tokens, report->draws);
  if (absl::IsOutOfRange(synced)) {
    Log().warn("{}", std::string(synced.message()));
    return StartAnew(session_->welcome(), sync_->next_draw());
  }
  RETURN_IF_ERROR(Annotate(synced, absl::StrCat("step ", step)));
  Throttle(report->tokens, step_time);
  Report(*report, step_time);
  const auto is_due = [&](int64_t every) {
    return every > 0 && step / every != former_step / every && step < run_.config().train().steps();
  };
  if (EvaluatesHere() && is_due(run_.config().train().evaluate_every_steps())) {
    RETURN_IF_ERROR(Evaluate());
  }
  if (is_due(options_.eval_tasks_every)) RETURN_IF_ERROR(EvaluateTasks());
  if (WritesCheckpoints() &&
      clock_.Monotonic() - last_checkpoint_ >= options_.checkpoint_interval) {
    RETURN_IF_ERROR(Checkpoint());
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
  ASSIGN_OR_RETURN(const std::span<const float> published, sync_->published());
  ASSIGN_OR_RETURN(const std::optional<double> loss, trainer_->Evaluate(published));
  progress_.evaluation += clock_.Monotonic() - before;
  if (!loss.has_value()) return absl::OkStatus();
  if (!progress_.initial_loss.has_value()) progress_.initial_loss = loss;
  progress_.eval_loss = loss;
  heartbeat_.mutable_evaluation()->set_step(progress_.step);
  heartbeat_.mutable_evaluation()->set_loss(*loss);
  session_->SetProgress(heartbeat_);
  telemetry_->Record("evaluated",
                     absl::StrFormat("step %d: held-out loss of the published parameters %.4f nats "
                                     "per token",
                                     progress_.step, *loss),
                     {{"step", progress_.step}, {"eval_loss", *loss}});
  RETURN_IF_ERROR(telemetry_->Evaluated(progress_.step, *loss));
  return metrics_->Append({{"kind", "eval"},
                           {"unix_s", UnixSeconds(clock_)},
                           {"step", progress_.step},
                           {"eval_loss", *loss}});
}

absl::Status TrainingRun::Checkpoint() {
  WorkerCheckpoint checkpoint;
  checkpoint.run_id = run_.run_id();
  checkpoint.worker_id = options_.worker_id;
  checkpoint.config = run_.config();
  checkpoint.data_slot = data_slot_;
  checkpoint.step = progress_.step;
  checkpoint.tokens = progress_.tokens;
  checkpoint.pace_milli = counter_.pace_milli();
  checkpoint.pace_carry_milli = counter_.carry_milli();
  checkpoint.parameters.resize(static_cast<size_t>(plan_.arena_size()));
  RETURN_IF_ERROR(trainer_->backend().CopyParameters(checkpoint.parameters));
  ASSIGN_OR_RETURN(OptimizerState optimizer, trainer_->backend().SaveOptimizer());
  checkpoint.optimizer_updates = optimizer.updates;
  checkpoint.first_moments = std::move(optimizer.first_moments);
  checkpoint.second_moments = std::move(optimizer.second_moments);
  ASSIGN_OR_RETURN(checkpoint.sync, sync_->Save());
  RETURN_IF_ERROR(WriteWorkerCheckpoint(file_system_, CheckpointPath(), checkpoint));
  last_checkpoint_ = clock_.Monotonic();
  progress_.checkpoint_step = progress_.step;
  session_->SetCheckpoint(progress_.step);
  telemetry_->Record("checkpoint_written",
                     absl::StrCat("checkpoint written at step ", progress_.step),
                     {{"step", progress_.step}});
  return absl::OkStatus();
}

absl::Status TrainingRun::Finish() {
  absl::Status status;
  if (drained_) {
    telemetry_->Record("draining", absl::StrCat("draining at step ", progress_.step),
                       {{"step", progress_.step}});
    status = sync_->FinishPushes();
  } else {
    status = sync_->Drain();
  }
  if (absl::IsCancelled(status) && session_->orders().ok()) {
    drained_ = true;
    status = absl::OkStatus();
  }
  RETURN_IF_ERROR(status);
  if (progress_.step > progress_.first_step) {
    wall_ = clock_.Monotonic() - progress_.start - progress_.evaluation;
  }
  RETURN_IF_ERROR(Checkpoint());
  if (!drained_ && EvaluatesHere()) RETURN_IF_ERROR(Evaluate());
  if (!drained_) RETURN_IF_ERROR(EvaluateTasks());
  return absl::OkStatus();
}

}  // namespace causeway::worker
