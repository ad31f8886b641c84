#include "worker/member/run_member.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

// Beyond the lease, for a coordinator that is about to come back.
constexpr absl::Duration kFirstAttachPatience = absl::Seconds(10);

// Steps of the schedule that an inner step may advance by.
int MaxAdvance(const v1::RunConfig& config) {
  return std::max(1, static_cast<int>(std::ceil(config.membership().max_pace())));
}

// The reason for not training yet, or not now.
std::string WhyHeld(const v1::RunConfig& config, const Session::Orders& orders) {
  if (orders.started) {
    return absl::StrCat("the run is paused", orders.pause_reason.empty()
                                                 ? ""
                                                 : absl::StrCat(" (", orders.pause_reason, ")"));
  }
  return absl::StrCat("the run begins with ", config.membership().start_workers(),
                      " workers, and has these: ", absl::StrJoin(orders.members, ", "));
}

// Why a try to attach was turned away; empty where nobody answered.
std::string Refusal(const absl::Status& why) {
  const bool of_tls = absl::StrContains(absl::AsciiStrToLower(why.message()), "handshake");
  const bool nobody = MadeOnTheWay(why) && !MayBeAnothers(why);
  return nobody && !of_tls ? "" : std::string(why.message());
}

}  // namespace

RunMember::RunMember(const MemberOptions& options, ReachedRun reached, FragmentPlan plan,
                     FileSystem& file_system, Clock& clock)
    : options_(options),
      reached_(std::move(reached)),
      file_system_(file_system),
      clock_(clock),
      plan_(std::move(plan)),
      report_(options_, reached_, plan_, file_system, clock),
      end_(config().train().steps()) {}

RunMember::~RunMember() {
  if (reached_.security.files != nullptr) reached_.security.files->ReportTo(nullptr);
  sync_.reset();                           // Its threads use the session.
  std::shared_ptr<GrpcExchange> exchange;  // Its lanes ask the session, whose threads reach for it.
  {
    absl::MutexLock lock(&exchange_mutex_);
    exchange_.swap(exchange);
  }
  exchange.reset();
  session_.reset();
}

absl::StatusOr<std::unique_ptr<RunMember>> RunMember::Create(const MemberOptions& options,
                                                             ReachedRun reached,
                                                             FileSystem& file_system,
                                                             Clock& clock) {
  ASSIGN_OR_RETURN(FragmentPlan plan, CheckRun(reached.run, options.any_model));
  return std::unique_ptr<RunMember>(
      new RunMember(options, std::move(reached), std::move(plan), file_system, clock));
}

absl::Status RunMember::OpenTelemetry() {
  ASSIGN_OR_RETURN(telemetry_, RunTelemetry::Open(options_, file_system_, clock_));
  if (reached_.security.files == nullptr) return absl::OkStatus();
  reached_.security.files->ReportTo(
      [telemetry = telemetry_.get()](const CertificateNotice& notice) {
        telemetry->Record(notice.fit ? "certificate_reloaded" : "certificate_unfit", notice.message,
                          nlohmann::json::object());
      });
  return absl::OkStatus();
}

absl::Status RunMember::Attach(const Description& description, const Place* place) {
  Session::Options session;
  session.channels = reached_.channels;
  session.passes = [this](const absl::Status& status) { return reached_.security.Passes(status); };
  session.events = &telemetry_->events();
  ASSIGN_OR_RETURN(wait_watch_,
                   WaitWatch::Start({.clock = &clock_, .say = [](const std::string& line) {
                                       Log().warn("{}", line);
                                     }}));
  session.on_stream = [this](bool stands) {
    telemetry_->SetAttached(stands);
    wait_watch_->SetAttached(stands);
  };
  session.on_failed_try = [this](const absl::Status& why) {
    wait_watch_->SetRefused(Refusal(why));
  };
  session.on_waits_for = [this](const std::string& whom) { wait_watch_->SetWaitsFor(whom); };
  v1::Join& join = session.join;
  join = JoinOf(run(), options_.worker_id);
  join.set_plan_hash(plan_.hash());  // As this build cuts it.
  join.set_software_version(description.software);
  join.set_device(description.device);
  join.set_threads(options_.threads);
  join.set_own_data(options_.own_data);
  join.set_data_fingerprint(description.data_fingerprint);
  session.progress.set_checkpoint_step(-1);
  if (place != nullptr) {
    join.set_has_checkpoint(true);
    join.set_resume_step(place->step);
    session.progress.set_step(place->step);
    session.progress.set_tokens(place->tokens);
    session.progress.set_pace_milli(place->pace_milli);
    session.progress.set_checkpoint_step(place->step);
  }
  session.max_steps_behind = config().sync().steps_between_syncs();
  session.first_attach_patience =
      absl::Milliseconds(config().membership().lease_ms()) + kFirstAttachPatience;
  ASSIGN_OR_RETURN(session_, Session::Attach(std::move(session)));
  report_.SpeakBy(telemetry_.get(), session_.get(), wait_watch_.get());
  return absl::OkStatus();
}

absl::Status RunMember::Begin(Hooks hooks, std::optional<Place> place) {
  hooks_ = std::move(hooks);
  const absl::Status begun = Continue(std::move(place));
  if (begun.ok()) return begun;
  SaysNoMore();
  // The id is free again at once, not when the lease ends.
  if (absl::IsCancelled(begun)) {
    session_->Leave(v1::Leave::DRAINED, "");
  } else {
    session_->Leave(v1::Leave::FAILED, std::string(begun.message()));
  }
  return begun;
}

absl::Status RunMember::Continue(std::optional<Place> place) {
  const v1::Welcome& welcome = session_->welcome();
  data_slot_ = welcome.data_slot();
  // Not before the coordinator has welcomed this worker: who is refused leaves no trace.
  RETURN_IF_ERROR(telemetry_->Begin(run().run_id(), config().train().steps(),
                                    place.has_value() ? place->step : 0));
  telemetry_->Record("attached",
                     absl::StrCat("attached as incarnation ", welcome.incarnation(),
                                  "; the run is at step ", welcome.run_step()),
                     {{"incarnation", welcome.incarnation()},
                      {"run_step", welcome.run_step()},
                      {"data_slot", data_slot_}});
  RETURN_IF_ERROR(hooks_.use_data_part(DataPart()));
  link_ = MakeLink();
  RETURN_IF_ERROR(OpenMergeRecord(!place.has_value()));
  RETURN_IF_ERROR(MakeSync());
  session_->OnFailure([this](const absl::Status& status) {
    if (left_) return;
    SaysNoMore();
    telemetry_->Record("session_failed", absl::StrCat("the session failed: ", status.message()),
                       {{"code", std::string(absl::StatusCodeToString(status.code()))},
                        {"reason", std::string(status.message())}});
    CancelExchange();
  });

  const int64_t behind = place.has_value() ? welcome.run_step() - place->step : 0;
  if (place.has_value()) {
    report_.Resume(place->tokens);
    counter_ = StepCounter(place->step, place->pace_milli, place->pace_carry_milli);
  }
  if (place.has_value() && (welcome.resumes() || behind <= config().sync().steps_between_syncs())) {
    RETURN_IF_ERROR(hooks_.restore_parameters());
    report_.UseCheckpoint(place->step);
    const int part = place->data_slot;
    const absl::Status restored = sync_->Restore(std::move(place->sync), step());
    anew_ = absl::IsOutOfRange(restored);
    if (anew_) {
      RETURN_IF_ERROR(MakeSync());
    } else {
      RETURN_IF_ERROR(restored);
      took_other_part_ = part != DataPart();
      if (took_other_part_) sync_->UseData(DataPart(), welcome.next_draw());
      if ((part == kOwnData) != options_.own_data) {
        Log().warn(
            "the checkpoint was made with data {}, and now they are {} (--own_data, data_slot): "
            "this worker goes on at draw {} of these",
            options_.own_data ? "that all share" : "of this worker's own",
            options_.own_data ? "its own"
                              : absl::StrCat("part ", data_slot_, " of the shared ones"),
            welcome.next_draw());
      }
      telemetry_->Record("checkpoint_restored",
                         absl::StrCat("continuing from the checkpoint at step ", step()),
                         {{"step", step()}});
      if (behind > 0) {
        Log().warn(
            "the checkpoint is {} behind the run: whatever was trained here after it is "
            "trained again",
            behind == 1 ? "1 step" : absl::StrCat(behind, " steps"));
      }
    }
  }
  if (anew_) {
    if (place.has_value()) {
      telemetry_->Record("checkpoint_stale",
                         absl::StrCat("the checkpoint is ", behind,
                                      " steps behind the run: its moments are kept, the weights "
                                      "are taken from the coordinator"),
                         {{"behind", behind}});
    }
    sync_->UseData(DataPart(), welcome.next_draw());
    const absl::Duration begin = clock_.Monotonic();
    ASSIGN_OR_RETURN(const int64_t step, FetchPublished());
    report_.JudgeBuffers(link_->Report());  // The state was the first to cross the link.
    const int64_t moved = step - welcome.run_step();
    telemetry_->Record(
        "state_fetched",
        absl::StrCat("has the published state, joining at step ", step,
                     moved > 0
                         ? absl::StrFormat("; it took %.1f s, in which the run did %d steps",
                                           absl::ToDoubleSeconds(clock_.Monotonic() - begin), moved)
                         : ""),
        {{"step", step}});
    counter_ = StepCounter(step, counter_.pace_milli());
  }
  return report_.Begin(standing(), anew_);
}

RunReport::Standing RunMember::standing() const {
  return {.counter = counter_,
          .end = end_,
          .data_slot = data_slot_,
          .sync = *sync_,
          .exchange = *exchange_,
          .link = *link_};
}

absl::Status RunMember::OpenMergeRecord(bool anew) {
  const v1::SyncConfig& sync = config().sync();
  const bool gives_way = MaxOverlapSteps(sync) > sync.overlap_steps();
  if (!options_.replay_merges.empty()) {
    if (!gives_way) {
      return absl::InvalidArgumentError(
          "--replay_merges is for runs with sync.max_overlap_steps above sync.overlap_steps: any "
          "other repeats without; leave it out");
    }
    ASSIGN_OR_RETURN(recorded_merges_, ReadMergeRecord(file_system_, options_.replay_merges,
                                                       /*may_be_absent=*/false));
  }
  if (!gives_way || options_.output.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      merge_record_,
      MergeRecord::Open(file_system_, JoinPath(options_.output, "merges.jsonl"), anew));
  if (options_.replay_merges.empty()) recorded_merges_ = merge_record_->merges();
  return absl::OkStatus();
}

std::shared_ptr<Link> RunMember::MakeLink() {
  Link::Options link = LinkTo(reached_, options_.coordinator, options_.congestion_control);
  link.connections = options_.connections;
  link.max_upload_bytes_per_second = options_.max_upload_bytes_per_second;
  link.max_download_bytes_per_second = options_.max_download_bytes_per_second;
  link.clock = &clock_;
  const absl::StatusOr<SocketBuffers> buffers = ReadSocketBuffers(file_system_);
  if (buffers.ok()) {
    link.send_buffer_bytes = buffers->send.largest;
    report_.UseBuffers(*buffers);
  }
  return std::make_shared<Link>(std::move(link));
}

absl::Status RunMember::MakeSync() {
  sync_.reset();  // Cancels the exchange that it uses.
  replica_.reset();
  ASSIGN_OR_RETURN(replica_, hooks_.make_replica());
  KeepFreedBlocks(ObjectBytesInFlight(plan_, config().sync()));
  auto exchange = std::make_shared<GrpcExchange>(GrpcExchange::Options{
      .link = link_.get(), .session = session_.get(), .plan = &plan_, .sync = config().sync()});
  {
    absl::MutexLock lock(&exchange_mutex_);
    exchange_.swap(exchange);
  }
  SyncEngine::Options sync;
  sync.config = config().sync();
  sync.plan = &plan_;
  sync.replica = replica_.get();
  sync.exchange = exchange_.get();
  sync.clock = &clock_;
  sync.max_advance = MaxAdvance(config());
  sync.data_slot = DataPart();
  sync.observer.late = [this](const SyncEvent& event) {
    telemetry_->Record(
        "delta_late",
        absl::StrCat("the delta of fragment ", event.fragment, " came too late for round ",
                     event.round, "; it travels with the next"),
        {{"fragment", event.fragment}, {"round", event.round}});
  };
  sync.recorded_merges = recorded_merges_;
  sync.observer.merged = [this](int64_t step, const SyncEvent& event) {
    if (merge_record_ != nullptr) merge_record_->Note({step, event});
    if (hooks_.merged) hooks_.merged(event);
  };
  sync.observer.waits = [this](const std::optional<SyncEvent>& event) {
    report_.Waiting(step(), event);
  };
  sync.observer.meanwhile = hooks_.meanwhile;
  sync_ = std::make_unique<SyncEngine>(std::move(sync));
  return sync_->started();
}

void RunMember::CancelExchange() {
  absl::MutexLock lock(&exchange_mutex_);
  if (exchange_ != nullptr) exchange_->Cancel();
}

absl::StatusOr<int64_t> RunMember::FetchPublished() {
  ASSIGN_OR_RETURN(const int64_t run_step, session_->RunStep(absl::Seconds(1)));
  // The answers from here on are kept while states are on their way, however long that takes.
  has_values_ = false;
  const int64_t checkpoint = report_.checkpoint_step();
  session_->SetCheckpoint(checkpoint < 0 ? run_step : std::min(checkpoint, run_step));
  absl::StatusOr<int64_t> step =
      sync_->Fetch(run_step, [this](absl::Duration max_age) { return session_->RunStep(max_age); });
  session_->SetCheckpoint(checkpoint);
  has_values_ = step.ok();
  return step;
}

absl::Status RunMember::StartAnew(int data_slot, int64_t next_draw) {
  const int64_t from = step();
  Log().warn(
      "the run went on without this worker, which is at step {}: it takes the published state, and "
      "goes on from there",
      from);
  if (hooks_.meanwhile) hooks_.meanwhile();
  data_slot_ = data_slot;
  anew_ = true;
  RETURN_IF_ERROR(hooks_.use_data_part(DataPart()));
  RETURN_IF_ERROR(MakeSync());
  sync_->UseData(DataPart(), next_draw);
  ASSIGN_OR_RETURN(const int64_t step, FetchPublished());
  counter_ = StepCounter(step, counter_.pace_milli());
  telemetry_->Record("started_anew",
                     absl::StrCat("the run went on without this worker: it was at step ", from,
                                  ", has the published state now, and goes on at step ", step),
                     {{"from_step", from}, {"to_step", step}});
  return hooks_.started_anew();
}

absl::Status RunMember::ObeyDataSlot(const Session::Orders& orders) {
  if (orders.data_slot == data_slot_) return absl::OkStatus();
  data_slot_ = orders.data_slot;
  if (options_.own_data) return absl::OkStatus();
  RETURN_IF_ERROR(hooks_.use_data_part(data_slot_));
  sync_->UseData(data_slot_, orders.next_draw);
  telemetry_->Record("data_part_changed",
                     absl::StrCat("from step ", step(), " on, part ", data_slot_, " of the data"),
                     {{"step", step()}, {"data_slot", data_slot_}});
  // A successor draws the same.
  return hooks_.checkpoint();
}

void RunMember::ObeyPace(const Session::Orders& orders) {
  if (orders.pace_milli == 0 || step() < orders.pace_from_step) return;
  const auto most = static_cast<int64_t>(std::max(1.0, config().membership().max_pace()) *
                                         static_cast<double>(kPaceOne));
  const int64_t pace = std::clamp(orders.pace_milli, kPaceOne, most);
  if (pace == counter_.pace_milli()) return;
  counter_.SetPace(pace);
  const double ratio = static_cast<double>(pace) / static_cast<double>(kPaceOne);
  telemetry_->Record("pace_changed",
                     absl::StrCat("from step ", step(), " an inner step counts for ", ratio,
                                  " steps of the schedule"),
                     {{"step", step()}, {"pace", ratio}});
}

void RunMember::Ready() { session_->Ready(step(), anew_); }

absl::StatusOr<RunMember::Turn> RunMember::NextTurn(absl::Duration timeout) {
  ASSIGN_OR_RETURN(const Session::Orders orders, session_->WaitForGo(timeout));
  const int64_t budget = config().train().steps();
  end_ = orders.stop_at_step > 0 ? std::min(budget, orders.stop_at_step) : budget;
  if (step() >= end_) return Turn::kFinished;
  if (orders.drain) return Turn::kDrain;
  if (orders.start_anew.has_value()) {
    RETURN_IF_ERROR(StartAnew(orders.start_anew->data_slot(), orders.start_anew->next_draw()));
    return Turn::kAnew;
  }
  if (!orders.started || orders.paused) {
    wait_watch_->SetSlack(std::nullopt);
    wait_watch_->SetHeld(WhyHeld(config(), orders));
    return Turn::kWait;
  }
  wait_watch_->SetHeld("");
  RETURN_IF_ERROR(ObeyDataSlot(orders));
  ObeyPace(orders);
  return Turn::kTrain;
}

absl::StatusOr<bool> RunMember::StepDone(const Step& step) {
  report_.CountStep(step.tokens, step.time);
  const int64_t now = counter_.Advance(end_);
  const absl::Status synced = sync_->AfterStep(now, step.tokens, step.draws);
  if (absl::IsOutOfRange(synced)) {
    Log().warn("{}", std::string(synced.message()));
    RETURN_IF_ERROR(StartAnew(data_slot_, sync_->next_draw()));
    return false;
  }
  RETURN_IF_ERROR(Annotate(synced, absl::StrCat("step ", now)));
  return true;
}

absl::StatusOr<RunMember::Place> RunMember::Save() {
  if (!has_values_) {
    return absl::FailedPreconditionError(
        "this worker was stopped while it took the published state: there is nothing to save; it "
        "joins again without a checkpoint");
  }
  Place place;
  place.step = step();
  place.tokens = report_.tokens();
  place.pace_milli = counter_.pace_milli();
  place.pace_carry_milli = counter_.carry_milli();
  place.data_slot = DataPart();
  ASSIGN_OR_RETURN(place.sync, sync_->Save());
  return place;
}

absl::Status RunMember::Finish(bool drained) {
  absl::Status status;
  wait_watch_->SetSlack(std::nullopt);  // Nothing is trained any more.
  if (drained) {
    telemetry_->Record("draining", absl::StrCat("draining at step ", step()), {{"step", step()}});
    status = sync_->FinishPushes();
  } else {
    wait_watch_->SetAllDone();
    status = sync_->Drain();
  }
  report_.StopClock(step());
  return status;
}

void RunMember::Leave(bool drained) {
  SaysNoMore();
  session_->Leave(drained ? v1::Leave::DRAINED : v1::Leave::FINISHED, "");
  if (drained) {
    telemetry_->Record("left", absl::StrCat("left the run at step ", step()), {{"step", step()}});
  } else {
    telemetry_->Record("finished", absl::StrCat("finished at step ", step()), {{"step", step()}});
  }
}

void RunMember::SaysNoMore() {
  left_ = true;
  wait_watch_->Silence();
}

absl::Status RunMember::Fail(absl::Status status, bool silently) {
  SaysNoMore();
  // The session's own failure is the cause of whatever else was cancelled.
  const absl::Status session = session_->orders().status();
  if (!session.ok()) status = session;
  telemetry_->Record("failed", absl::StrCat("training failed: ", status.message()),
                     {{"step", step()},
                      {"code", std::string(absl::StatusCodeToString(status.code()))},
                      {"reason", std::string(status.message())}});
  if (!silently) session_->Leave(v1::Leave::FAILED, std::string(status.message()));
  return status;
}

}  // namespace causeway::worker
