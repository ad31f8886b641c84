// The session side of CoordinatorImpl: joins, messages of workers, messages to workers.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "server/core/coordinator_impl.h"
#include "server/round/pace.h"

namespace causeway::server {
namespace {

absl::Status Mismatch(absl::string_view field, absl::string_view theirs, absl::string_view ours,
                      absl::string_view remedy) {
  return absl::FailedPreconditionError(absl::StrCat(field, " differs: the worker has ", theirs,
                                                    ", the coordinator ", ours, "; ", remedy));
}

absl::string_view ReasonName(v1::Leave::Reason reason) {
  switch (reason) {
    case v1::Leave::FINISHED:
      return "finished";
    case v1::Leave::DRAINED:
      return "drained";
    case v1::Leave::FAILED:
      return "failed";
    default:
      return "unspecified";
  }
}

}  // namespace

Progress ProgressOf(const v1::Heartbeat& heartbeat) {
  constexpr double kLongestStep = 1e6;  // Seconds.
  constexpr int64_t kLargestPace = 1000 * 1000;
  Progress progress;
  progress.tokens = heartbeat.tokens();
  const double seconds = heartbeat.inner_step_seconds();
  if (seconds > 0 && seconds <= kLongestStep) progress.inner_step_time = absl::Seconds(seconds);
  const int64_t pace = heartbeat.pace_milli();
  if (pace >= kPaceOne && pace <= kLargestPace) progress.pace_milli = pace;
  const double speed = heartbeat.tokens_per_second();
  if (speed > 0 && std::isfinite(speed)) progress.tokens_per_second = speed;
  const double rate = heartbeat.download_bytes_per_second();
  if (rate > 0 && std::isfinite(rate)) progress.download_bytes_per_s = rate;
  return progress;
}

absl::Status CoordinatorImpl::CheckJoin(const v1::Join& join) const {
  RETURN_IF_ERROR(CheckName("worker_id", join.worker_id()));
  if (region() && join.worker_id() == options_.region->id) {
    return absl::InvalidArgumentError(
        absl::StrCat(join.worker_id(), " is this region's own id: give the worker another --id"));
  }
  if (join.sites() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a region has 1 site or more, it says ", join.sites()));
  }
  if (join.sites() > 0 &&
      options_.config.membership().weighting() == v1::MembershipConfig::UNIFORM) {
    return absl::FailedPreconditionError(
        "with membership.weighting UNIFORM a whole region would count as one worker: regions need "
        "a run with TOKENS, the default");
  }
  if (join.run_id() == options_.run_id) {
    RETURN_IF_ERROR(CheckEpoch(join.worker_id(), join.seen_epoch(), epoch_));
  }
  if (join.wire_version() != kWireVersion) {
    return Mismatch(
        "wire_version", absl::StrCat(join.wire_version()), absl::StrCat(kWireVersion),
        absl::StrCat("install the coordinator's release (", kSoftwareVersion, ") on the worker"));
  }
  if (join.run_id() != options_.run_id) {
    return Mismatch("run_id", join.run_id(), options_.run_id,
                    "the worker belongs to another run: check its coordinator's address, or give "
                    "it a fresh checkpoint folder");
  }
  if (join.config_hash() != config_hash_) {
    return Mismatch("config_hash", HashToHex(join.config_hash()), HashToHex(config_hash_),
                    "the worker's copy of the run's configuration is another one: let it fetch the "
                    "configuration again (Describe)");
  }
  if (join.plan_hash() != plan_.hash()) {
    return Mismatch("plan_hash", HashToHex(join.plan_hash()), HashToHex(plan_.hash()),
                    "the worker's model has other tensors or another cut into fragments: run the "
                    "same release on both sides");
  }
  // The data of a trainer that is not ours are its own matter.
  if (options_.config.has_model() &&
      join.data_vocabulary_size() != options_.config.model().vocabulary_size()) {
    return Mismatch("data_vocabulary_size", absl::StrCat(join.data_vocabulary_size()),
                    absl::StrCat(options_.config.model().vocabulary_size()),
                    "give the worker shards made with the run's tokenizer, or set "
                    "model.vocabulary_size to the data's");
  }
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::CheckSharedData(const v1::Join& join, bool& changed) {
  const uint64_t fingerprint = join.data_fingerprint();
  if (join.own_data() || fingerprint == 0) return absl::OkStatus();
  changed = state_.data_fingerprint() == 0;
  if (changed) state_.set_data_fingerprint(fingerprint);
  if (fingerprint == state_.data_fingerprint()) return absl::OkStatus();
  return Mismatch("data_fingerprint", HashToHex(fingerprint), HashToHex(state_.data_fingerprint()),
                  "workers that share the data need the same training shards, or some text would "
                  "be trained twice: copy them from another worker; or, if these are this site's "
                  "own, start it with --own_data");
}

int64_t CoordinatorImpl::NextDraw(const Member& member) const {
  return draws_.NextDraw(member.own_data ? kOwnData : member.data_slot, member.id);
}

std::vector<int64_t> CoordinatorImpl::NextDraws(const Member& member) const {
  std::vector<int64_t> draws;
  for (int i = 0; i < member.sites; ++i) draws.push_back(draws_.NextDraw(member.data_slot + i, ""));
  return draws;
}

void CoordinatorImpl::GiveParts(const Member& member, int64_t step) {
  if (member.own_data) return;
  for (int i = 0; i < member.workers(); ++i) draws_.Give(member.data_slot + i, step);
}

int64_t CoordinatorImpl::PublishedStep(const std::vector<OpenRound>& open_rounds) const {
  int64_t step = 0;
  for (const OpenRound& round : open_rounds) {
    if (round.round > 1) step = std::max(step, schedule_.SendStep(round.fragment, round.round - 1));
  }
  return step;
}

int64_t CoordinatorImpl::StepByNow(const std::vector<OpenRound>& open_rounds) const {
  const int64_t known = std::max(membership_.largest_step(), PublishedStep(open_rounds));
  if (!state_.started() || state_.paused()) return known;
  const int64_t most = std::min(EndStep(), LargestPossibleStep(open_rounds, options_.config));
  const int64_t likely = LikelyStep(options_.clock->Monotonic(), membership_.members());
  return std::max(known, std::min(most, likely));
}

std::string CoordinatorImpl::WaitsFor(const std::string& worker_id,
                                      const std::vector<OpenRound>& open_rounds) const {
  const OpenRound* first = nullptr;
  for (const OpenRound& round : open_rounds) {
    if (!round.arrivals.contains(worker_id)) continue;
    if (first == nullptr || round.send_step < first->send_step) first = &round;
  }
  if (first == nullptr) return "";
  return Decide(options_.clock->Monotonic(), *first, membership_.members(), PolicyNow()).reason;
}

absl::StatusOr<v1::Welcome> CoordinatorImpl::Join(const v1::Join& join,
                                                  std::shared_ptr<SessionSink> sink) {
  RETURN_IF_ERROR(Serving());
  absl::StatusOr<v1::Welcome> welcome = Admit(join, std::move(sink));
  if (!welcome.ok() && !absl::IsUnavailable(welcome.status())) {
    incidents_.JoinRefused(join, welcome.status());
  }
  return welcome;
}

absl::StatusOr<v1::Welcome> CoordinatorImpl::Admit(const v1::Join& join,
                                                   std::shared_ptr<SessionSink> sink) {
  RETURN_IF_ERROR(CheckJoin(join));
  const std::vector<OpenRound> open_rounds = OpenRounds();
  const std::string& id = join.worker_id();
  v1::Welcome welcome;
  std::shared_ptr<SessionSink> former;
  Outbox outbox;
  Member member;
  bool first_to_share = false;
  {
    absl::MutexLock lock(&members_mutex_);
    if (shut_down_) return absl::UnavailableError("the coordinator is shutting down");
    RETURN_IF_ERROR(CheckSharedData(join, first_to_share));
    ASSIGN_OR_RETURN(member,
                     membership_.Join(id, join.process_nonce(), join.has_checkpoint(),
                                      options_.clock->Monotonic(), join.own_data(), join.sites()));
    welcome.set_next_draw(NextDraw(member));
    for (const int64_t draw : NextDraws(member)) welcome.add_next_draws(draw);
    former = std::exchange(sinks_[id], std::move(sink));
    v1::Member& account = accounts_[id];
    account.set_device(join.device());
    account.set_software_version(join.software_version());
    welcome.set_started(state_.started());
    int64_t largest = membership_.largest_step();
    if (region()) largest = std::max(largest, PublishedStep(open_rounds));  // It may be further.
    welcome.set_run_step(StartStep(open_rounds, membership_.members(), largest, PolicyNow()));
    welcome.set_resumes(member.was_ready &&
                        (member.state == v1::Member::ACTIVE || welcome.run_step() < largest));
    if (!welcome.resumes()) GiveParts(member, welcome.run_step());
    AddRoster(outbox);
  }
  // An incarnation that was given is never given again, whatever happens to this process.
  RETURN_IF_ERROR(SaveMember(id));
  if (first_to_share) RETURN_IF_ERROR(SaveRunState());
  welcome.set_incarnation(member.incarnation);
  welcome.set_epoch(epoch_);
  welcome.set_data_slot(member.data_slot);
  welcome.set_lease_ms(options_.config.membership().lease_ms());
  for (const OpenRound& round : open_rounds) welcome.add_published_versions(round.round - 1);
  if (former != nullptr) {
    former->Close(absl::AbortedError(
        absl::StrCat("incarnation ", member.incarnation, " of ", id, " has attached")));
    Record("worker_fenced",
           absl::StrCat("the former session of worker ", id, " is fenced off by incarnation ",
                        member.incarnation),
           {{"worker", id}, {"incarnation", member.incarnation}});
  }
  Record("worker_joined",
         absl::StrCat("worker ", id, " joined (", join.device(), ", data slot ", member.data_slot,
                      ", incarnation ", member.incarnation, ")"),
         {{"worker", id},
          {"incarnation", member.incarnation},
          {"data_slot", member.data_slot},
          {"own_data", member.own_data},
          {"device", join.device()},
          {"software_version", join.software_version()},
          {"resume_step", join.resume_step()},
          {"resumes", welcome.resumes()}});
  Send(outbox);
  return welcome;
}

absl::Status CoordinatorImpl::Handle(const std::string& worker_id, uint64_t incarnation,
                                     const v1::WorkerMessage& message) {
  RETURN_IF_ERROR(Serving());
  switch (message.message_case()) {
    case v1::WorkerMessage::kReady:
      return HandleReady(worker_id, incarnation, message.ready());
    case v1::WorkerMessage::kHeartbeat:
      return HandleHeartbeat(worker_id, incarnation, message.heartbeat());
    case v1::WorkerMessage::kApplied:
      return HandleApplied(worker_id, incarnation, message.applied());
    case v1::WorkerMessage::kLeave:
      return HandleLeave(worker_id, incarnation, message.leave());
    case v1::WorkerMessage::kJoin:
      return absl::InvalidArgumentError("only the first message of a session is a Join");
    case v1::WorkerMessage::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of the session is empty or of an unknown kind");
}

absl::Status CoordinatorImpl::CheckStep(int64_t step) const {
  if (step >= 0 && step <= options_.config.train().steps()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a step must be 0 .. ",
                                                 options_.config.train().steps(),
                                                 " (train.steps), the message says ", step));
}

absl::Status CoordinatorImpl::CheckReached(const std::string& worker_id, int64_t step) const {
  RETURN_IF_ERROR(CheckStep(step));
  const int64_t largest = LargestPossibleStep(OpenRounds(), options_.config);
  if (step <= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "worker ", worker_id, " says that it is at step ", step, "; nobody gets beyond step ",
      largest,
      " before the rounds that are open are published: restart it without its checkpoint, and look "
      "whether it has trained with another coordinator"));
}

bool CoordinatorImpl::StartIfDue() {
  const int needed =
      region() ? options_.region->sites : options_.config.membership().start_workers();
  if (state_.started() || membership_.active() < needed || (region() && !parent_started_)) {
    return false;
  }
  state_.set_started(true);
  state_.set_started_unix_s(absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch()));
  membership_.NumberByName();
  return true;
}

void CoordinatorImpl::AddStart(const std::string& id, Outbox& outbox) const {
  const Member& member = *membership_.Find(id);
  if (!sinks_.contains(id)) return;
  AddDirective(v1::Directive::START, 0, "", id, outbox);
  v1::Directive& start = *outbox.back().second.mutable_directive();
  start.set_data_slot(member.data_slot);
  start.set_next_draw(NextDraw(member));
  for (const int64_t draw : NextDraws(member)) start.add_next_draws(draw);
  if (state_.paused()) {
    AddDirective(v1::Directive::PAUSE, 0, state_.pause_reason(), id, outbox);
  }
  // It may have missed the end of a pause while its stream was broken.
  if (!state_.paused() && member.incarnation > 1) {
    AddDirective(v1::Directive::RESUME, 0, "", id, outbox);
  }
  if (state_.stop_step() > 0) {
    AddDirective(v1::Directive::STOP_AT_STEP, state_.stop_step(), "the run ends there", id, outbox);
  }
  if (member.ordered_pace_milli > 0) {
    AddDirective(v1::Directive::SET_PACE, member.ordered_from_step, "as before", id, outbox);
    outbox.back().second.mutable_directive()->set_pace_milli(member.ordered_pace_milli);
  }
}

absl::Status CoordinatorImpl::HandleReady(const std::string& worker_id, uint64_t incarnation,
                                          const v1::Ready& ready) {
  RETURN_IF_ERROR(CheckReached(worker_id, ready.step()));
  Outbox outbox;
  bool starts_now = false;
  std::vector<std::string> live;  // Whose numbers may be new.
  int active = 0;
  {
    absl::MutexLock lock(&members_mutex_);
    const Member* const before = membership_.Find(worker_id);
    const bool begins = ready.anew() || before == nullptr || !before->was_ready;
    RETURN_IF_ERROR(membership_.Ready(worker_id, incarnation, ready.step(), ready.anew()));
    if (begins) {
      tokens_.Begin(worker_id, ready.step(), membership_.Find(worker_id)->sites);
    }
    starts_now = StartIfDue();
    active = membership_.active();
    if (starts_now) live = membership_.LiveIds();
    for (const auto& [id, sink] : sinks_) {
      const Member* const member = membership_.Find(id);
      const bool told = starts_now ? member->state == v1::Member::ACTIVE : id == worker_id;
      if (told && state_.started()) AddStart(id, outbox);
    }
    // Its stream may have been broken when it was asked.
    const v1::Member& account = accounts_[worker_id];
    if (account.has_draining() &&
        account.draining() == membership_.Find(worker_id)->process_nonce) {
      AddDirective(v1::Directive::DRAIN, 0, "asked to by the operator", worker_id, outbox);
    }
  }
  RETURN_IF_ERROR(SaveMember(worker_id));
  RETURN_IF_ERROR(SaveMembers(live));
  if (starts_now) RETURN_IF_ERROR(SaveRunState());
  Record("worker_ready", absl::StrCat("worker ", worker_id, " is ready at step ", ready.step()),
         {{"worker", worker_id}, {"step", ready.step()}});
  if (starts_now) {
    Record("training_started", absl::StrCat("training starts with ", active, " workers"),
           {{"workers", active}});
  }
  Send(outbox);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::HandleHeartbeat(const std::string& worker_id, uint64_t incarnation,
                                              const v1::Heartbeat& heartbeat) {
  RETURN_IF_ERROR(CheckReached(worker_id, heartbeat.step()));
  if (heartbeat.checkpoint_step() != -1) RETURN_IF_ERROR(CheckStep(heartbeat.checkpoint_step()));
  if (heartbeat.tokens() < 0 || heartbeat.tokens() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens must be 0 .. 2^48, the heartbeat says ", heartbeat.tokens()));
  }
  Outbox outbox;
  bool attached = false;
  const std::vector<OpenRound> open_rounds = OpenRounds();
  {
    absl::MutexLock lock(&members_mutex_);
    RETURN_IF_ERROR(membership_.Heartbeat(worker_id, incarnation, heartbeat.step(),
                                          options_.clock->Monotonic(), ProgressOf(heartbeat)));
    *accounts_[worker_id].mutable_heartbeat() = heartbeat;
    const auto sink = sinks_.find(worker_id);
    attached = sink != sinks_.end();
    if (attached) {
      v1::CoordinatorMessage message;
      v1::LeaseRenewed& renewed = *message.mutable_lease_renewed();
      renewed.set_lease_ms(options_.config.membership().lease_ms());
      renewed.set_coordinator_unix_ms(absl::ToUnixMillis(options_.clock->Now()));
      renewed.set_run_step(
          StartStep(open_rounds, membership_.members(), StepByNow(open_rounds), PolicyNow()));
      if (heartbeat.has_steps_before_wait() && heartbeat.steps_before_wait() == 0) {
        renewed.set_waits_for(WaitsFor(worker_id, open_rounds));
      }
      outbox.emplace_back(sink->second, std::move(message));
    }
  }
  for (RunObserver* const observer : options_.observers) {
    observer->OnHeartbeat(worker_id, heartbeat);
  }
  if (!attached) return absl::OkStatus();
  Send(outbox);
  return ActOnProgress();
}

absl::Status CoordinatorImpl::HandleApplied(const std::string& worker_id, uint64_t incarnation,
                                            const v1::Applied& applied) {
  {
    absl::MutexLock lock(&members_mutex_);
    RETURN_IF_ERROR(membership_.Check(worker_id, incarnation));
  }
  ASSIGN_OR_RETURN(FragmentRounds* const fragment, FindFragment(applied.fragment()));
  ASSIGN_OR_RETURN(const uint64_t hash, fragment->PublishedHash(applied.round()));
  hash_checks_.fetch_add(1);
  if (hash == applied.published_hash()) {
    for (RunObserver* const observer : options_.observers) {
      observer->OnApplied(worker_id, applied.fragment(), applied.round());
    }
    return absl::OkStatus();
  }
  hash_mismatches_.fetch_add(1);
  const std::string what = absl::StrCat(
      "after round ", applied.round(), " of fragment ", applied.fragment(), " worker ", worker_id,
      " holds ", HashToHex(applied.published_hash()), ", published is ", HashToHex(hash));
  Record("hash_mismatch", what,
         {{"worker", worker_id},
          {"fragment", applied.fragment()},
          {"round", applied.round()},
          {"worker_hash", HashToHex(applied.published_hash())},
          {"published_hash", HashToHex(hash)}});
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    RETURN_IF_ERROR(membership_.Expel(worker_id, incarnation));
    sinks_.erase(worker_id);  // Its caller closes it, with what is returned.
    AddRoster(outbox);
  }
  RETURN_IF_ERROR(SaveMember(worker_id));
  Send(outbox);
  NoteIfFinished();
  return absl::DataLossError(
      absl::StrCat(what, "; the worker's copy is damaged: start it again without its checkpoint"));
}

absl::Status CoordinatorImpl::HandleLeave(const std::string& worker_id, uint64_t incarnation,
                                          const v1::Leave& leave) {
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    // Who failed may be started again, and is as good as lost until then.
    if (leave.reason() == v1::Leave::FAILED) {
      RETURN_IF_ERROR(membership_.Expel(worker_id, incarnation));
    } else {
      RETURN_IF_ERROR(membership_.Leave(worker_id, incarnation));
      somebody_left_ = true;
      somebody_finished_ |= leave.reason() == v1::Leave::FINISHED;
    }
    sinks_.erase(worker_id);
    AddRoster(outbox);
  }
  RETURN_IF_ERROR(SaveMember(worker_id));
  const absl::string_view reason = ReasonName(leave.reason());
  Record("worker_left",
         absl::StrCat("worker ", worker_id, " left: ", reason,
                      leave.detail().empty() ? "" : absl::StrCat(" (", leave.detail(), ")")),
         {{"worker", worker_id}, {"reason", std::string(reason)}, {"detail", leave.detail()}});
  Send(outbox);
  NoteIfFinished();
  return absl::OkStatus();
}

void CoordinatorImpl::Disconnected(const std::string& worker_id, uint64_t incarnation,
                                   const absl::Status& why) {
  {
    absl::MutexLock lock(&members_mutex_);
    const Member* const member = membership_.Find(worker_id);
    if (member == nullptr || member->incarnation != incarnation || !member->live()) return;
    membership_.Disconnected(worker_id, incarnation);
    sinks_.erase(worker_id);
  }
  Record("worker_disconnected",
         absl::StrCat("the session of worker ", worker_id, " is over (", why.message(),
                      "); its membership is kept until its lease ends"),
         {{"worker", worker_id},
          {"code", std::string(absl::StatusCodeToString(why.code()))},
          {"reason", std::string(why.message())}});
}

void CoordinatorImpl::AddDirective(v1::Directive::Action action, int64_t step,
                                   const std::string& reason, const std::string& worker_id,
                                   Outbox& outbox) const {
  const auto sink = sinks_.find(worker_id);
  if (sink == sinks_.end()) return;
  v1::CoordinatorMessage message;
  message.mutable_directive()->set_action(action);
  message.mutable_directive()->set_step(step);
  message.mutable_directive()->set_reason(reason);
  outbox.emplace_back(sink->second, std::move(message));
}

void CoordinatorImpl::AddRoster(Outbox& outbox) const {
  v1::CoordinatorMessage message;
  for (std::string& id : membership_.LiveIds()) {
    message.mutable_roster()->add_worker_ids(std::move(id));
  }
  for (const auto& [id, sink] : sinks_) outbox.emplace_back(sink, message);
}

void CoordinatorImpl::Broadcast(const v1::CoordinatorMessage& message) {
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    for (const auto& [id, sink] : sinks_) outbox.emplace_back(sink, message);
  }
  Send(outbox);
}

void CoordinatorImpl::Send(const Outbox& outbox) {
  for (const auto& [sink, message] : outbox) sink->Send(message);
}

void CoordinatorImpl::Tell(const std::string& worker_id, const std::string& text) {
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    const auto sink = sinks_.find(worker_id);
    if (sink == sinks_.end()) return;
    v1::CoordinatorMessage message;
    message.mutable_notice()->set_text(text);
    outbox.emplace_back(sink->second, std::move(message));
  }
  Send(outbox);
}

void CoordinatorImpl::NoteIfFinished() {
  int64_t steps = 0;
  const bool rounds_are_done = RoundsAreDone();
  {
    absl::MutexLock lock(&members_mutex_);
    if (state_.finish_recorded() || !FinishedLocked(rounds_are_done)) return;
    state_.set_finish_recorded(true);
    steps = membership_.largest_step();
  }
  if (!SaveRunState().ok()) return;
  Record("run_finished", absl::StrCat("every worker has left; the run did ", steps, " steps"),
         {{"steps", steps}});
}

}  // namespace causeway::server
