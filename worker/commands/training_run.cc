#include "worker/commands/training_run.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(100);
// Weight of an inner step in the smoothed step time.
constexpr double kNewestStep = 1.0 / 16;

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

absl::Status TrainingRun::Train(const std::function<bool()>& stop) {
  absl::StatusOr<std::thread> watcher = StartThread([&] { WatchForStop(stop); });
  absl::Status status = watcher.ok() ? TrainSteps() : watcher.status();
  if (!status.ok() && !SiteStatus().ok()) status = SiteStatus();
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
    if (!SiteStatus().ok()) status = SiteStatus();
    // The session's own failure is the cause of whatever else was cancelled.
    const absl::Status session = session_->orders().status();
    if (!session.ok()) status = session;
    telemetry_->Record("failed", absl::StrCat("training failed: ", status.message()),
                       {{"step", progress_.step},
                        {"code", std::string(absl::StatusCodeToString(status.code()))},
                        {"reason", std::string(status.message())}});
    // A process that is lost may be back soon, with all others: then the run has waited for this
    // worker, which continues from its checkpoint.
    if (SiteStatus().ok()) session_->Leave(v1::Leave::FAILED, std::string(status.message()));
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

void TrainingRun::WatchForStop(const std::function<bool()>& stop) {
  const auto told_to_stop = [&] {
    const absl::StatusOr<Session::Orders> orders = session_->orders();
    return stop() || (orders.ok() && orders->drain);
  };
  while (!told_to_stop()) {
    if (AwaitEnd(kStopPoll)) return;
    if (!SiteStatus().ok()) return CancelExchange();  // Nothing else would end a wait for answers.
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
    RETURN_IF_ERROR(SiteStatus());
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
