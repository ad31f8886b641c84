#include "server/core/run.h"

#include "absl/strings/ascii.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "server/round/pace.h"

namespace causeway::server {
namespace {

absl::Status Mismatch(absl::string_view field, absl::string_view theirs, absl::string_view ours,
                      absl::string_view remedy) {
  return absl::FailedPreconditionError(absl::StrCat(field, " differs: the worker has ", theirs,
                                                    ", the coordinator ", ours, "; ", remedy));
}

// Implausible values count as unknown.
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

absl::Status CheckJoin(const Run& run, const v1::Join& join) {
  RETURN_IF_ERROR(CheckName("worker_id", join.worker_id()));
  if (join.worker_id() == run.tier.own_id) {
    return absl::InvalidArgumentError(
        absl::StrCat(join.worker_id(), " is this region's own id: give the worker another --id"));
  }
  if (join.sites() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a region has 1 site or more, it says ", join.sites()));
  }
  if (join.sites() > 0 &&
      run.options.config.membership().weighting() == v1::MembershipConfig::UNIFORM) {
    return absl::FailedPreconditionError(
        "with membership.weighting UNIFORM a whole region would count as one worker: regions need "
        "a run with TOKENS, the default");
  }
  if (join.run_id() == run.options.run_id) {
    RETURN_IF_ERROR(CheckEpoch(join.worker_id(), join.seen_epoch(), run.epoch));
  }
  if (join.wire_version() != kWireVersion) {
    return Mismatch(
        "wire_version", absl::StrCat(join.wire_version()), absl::StrCat(kWireVersion),
        absl::StrCat("install the coordinator's release (", kSoftwareVersion, ") on the worker"));
  }
  if (join.run_id() != run.options.run_id) {
    return Mismatch("run_id", join.run_id(), run.options.run_id,
                    "the worker belongs to another run: check its coordinator's address, or give "
                    "it a fresh checkpoint folder");
  }
  if (join.config_hash() != run.config_hash) {
    return Mismatch("config_hash", HashToHex(join.config_hash()), HashToHex(run.config_hash),
                    "the worker's copy of the run's configuration is another one: let it fetch the "
                    "configuration again (Describe)");
  }
  if (join.plan_hash() != run.plan.hash()) {
    return Mismatch("plan_hash", HashToHex(join.plan_hash()), HashToHex(run.plan.hash()),
                    "the worker's model has other tensors or another cut into fragments: run the "
                    "same release on both sides");
  }
  // The data of a trainer that is not ours are its own matter.
  if (run.options.config.has_model() &&
      join.data_vocabulary_size() != run.options.config.model().vocabulary_size()) {
    return Mismatch("data_vocabulary_size", absl::StrCat(join.data_vocabulary_size()),
                    absl::StrCat(run.options.config.model().vocabulary_size()),
                    "give the worker shards made with the run's tokenizer, or set "
                    "model.vocabulary_size to the data's");
  }
  return absl::OkStatus();
}

// The first worker that shares the data says which they are; refuses those who have others.
// `changed`: it did.
absl::Status CheckSharedData(Run& run, const v1::Join& join, bool& changed)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(run.mutex) {
  const uint64_t fingerprint = join.data_fingerprint();
  if (join.own_data() || fingerprint == 0) return absl::OkStatus();
  changed = run.state.data_fingerprint() == 0;
  if (changed) run.state.set_data_fingerprint(fingerprint);
  if (fingerprint == run.state.data_fingerprint()) return absl::OkStatus();
  return Mismatch("data_fingerprint", HashToHex(fingerprint),
                  HashToHex(run.state.data_fingerprint()),
                  "workers that share the data need the same training shards, or some text would "
                  "be trained twice: copy them from another worker; or, if these are this site's "
                  "own, start it with --own_data");
}

// The last step after which a delta was sent that is published.
int64_t PublishedStep(const Run& run, const std::vector<OpenRound>& open_rounds) {
  int64_t step = 0;
  for (const OpenRound& round : open_rounds) {
    if (round.round > 1)
      step = std::max(step, run.schedule.SendStep(round.fragment, round.round - 1));
  }
  return step;
}

// The largest step that the run has come to, with those that are likely to be done since the last
// heartbeats.
int64_t StepByNow(const Run& run, const std::vector<OpenRound>& open_rounds)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(run.mutex) {
  const int64_t known = std::max(run.membership.largest_step(), PublishedStep(run, open_rounds));
  if (!run.state.started() || run.state.paused()) return known;
  const int64_t most =
      std::min(run.EndStep(), LargestPossibleStep(open_rounds, run.options.config));
  const int64_t likely = LikelyStep(run.options.clock->Monotonic(), run.membership.members());
  return std::max(known, std::min(most, likely));
}

// Whom the earliest open round lacks that the worker has contributed to; empty: none does.
std::string WaitsFor(const Run& run, const std::string& worker_id,
                     const std::vector<OpenRound>& open_rounds)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(run.mutex) {
  const OpenRound* first = nullptr;
  for (const OpenRound& round : open_rounds) {
    if (!round.arrivals.contains(worker_id)) continue;
    if (first == nullptr || round.send_step < first->send_step) first = &round;
  }
  if (first == nullptr) return "";
  return Decide(run.options.clock->Monotonic(), *first, run.membership.members(), run.PolicyNow())
      .reason;
}

absl::StatusOr<v1::Welcome> Admit(Run& run, const v1::Join& join,
                                  std::shared_ptr<SessionSink> sink) {
  RETURN_IF_ERROR(CheckJoin(run, join));
  const std::vector<OpenRound> open_rounds = run.OpenRounds();
  const std::string& id = join.worker_id();
  v1::Welcome welcome;
  std::shared_ptr<SessionSink> former;
  Run::Outbox outbox;
  Member member;
  bool first_to_share = false;
  {
    absl::MutexLock lock(&run.mutex);
    if (run.shut_down) return absl::UnavailableError("the coordinator is shutting down");
    RETURN_IF_ERROR(CheckSharedData(run, join, first_to_share));
    ASSIGN_OR_RETURN(
        member, run.membership.Join(id, join.process_nonce(), join.has_checkpoint(),
                                    run.options.clock->Monotonic(), join.own_data(), join.sites()));
    welcome.set_next_draw(run.NextDraw(member));
    for (const int64_t draw : run.NextDraws(member)) welcome.add_next_draws(draw);
    former = std::exchange(run.sinks[id], std::move(sink));
    v1::Member& account = *run.membership.Account(id);
    account.set_device(join.device());
    account.set_software_version(join.software_version());
    welcome.set_started(run.state.started());
    int64_t largest = run.membership.largest_step();
    // A region may be further.
    if (run.tier.under_parent) largest = std::max(largest, PublishedStep(run, open_rounds));
    welcome.set_run_step(
        StartStep(open_rounds, run.membership.members(), largest, run.PolicyNow()));
    welcome.set_resumes(member.record.was_ready() && (member.record.state() == v1::Member::ACTIVE ||
                                                      welcome.run_step() < largest));
    if (!welcome.resumes()) run.GiveParts(member, welcome.run_step());
    run.AddRoster(outbox);
  }
  // An incarnation that was given is never given again, whatever happens to this process.
  RETURN_IF_ERROR(run.SaveMember(id));
  if (first_to_share) RETURN_IF_ERROR(run.SaveRunState());
  for (RunObserver* const observer : run.options.observers) observer->OnJoined(id);
  welcome.set_incarnation(member.record.incarnation());
  welcome.set_epoch(run.epoch);
  welcome.set_data_slot(member.record.data_slot());
  welcome.set_lease_ms(run.options.config.membership().lease_ms());
  for (const OpenRound& round : open_rounds) welcome.add_published_versions(round.round - 1);
  if (former != nullptr) {
    former->Close(absl::AbortedError(
        absl::StrCat("incarnation ", member.record.incarnation(), " of ", id, " has attached")));
    run.Record("worker_fenced",
               absl::StrCat("the former session of worker ", id, " is fenced off by incarnation ",
                            member.record.incarnation()),
               {{"worker", id}, {"incarnation", member.record.incarnation()}});
  }
  run.Record(
      "worker_joined",
      absl::StrCat("worker ", id, " joined (", join.device(), ", data slot ",
                   member.record.data_slot(), ", incarnation ", member.record.incarnation(), ")"),
      {{"worker", id},
       {"incarnation", member.record.incarnation()},
       {"data_slot", member.record.data_slot()},
       {"own_data", member.record.own_data()},
       {"device", join.device()},
       {"software_version", join.software_version()},
       {"resume_step", join.resume_step()},
       {"resumes", welcome.resumes()}});
  run.Send(outbox);
  return welcome;
}

absl::Status CheckStep(const Run& run, int64_t step) {
  if (step >= 0 && step <= run.options.config.train().steps()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a step must be 0 .. ",
                                                 run.options.config.train().steps(),
                                                 " (train.steps), the message says ", step));
}

// A step that the member can have reached, too.
absl::Status CheckReached(const Run& run, const std::string& worker_id, int64_t step) {
  RETURN_IF_ERROR(CheckStep(run, step));
  const int64_t largest = LargestPossibleStep(run.OpenRounds(), run.options.config);
  if (step <= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "worker ", worker_id, " says that it is at step ", step, "; nobody gets beyond step ",
      largest,
      " before the rounds that are open are published: restart it without its checkpoint, and look "
      "whether it has trained with another coordinator"));
}

absl::Status HandleReady(Run& run, const std::string& worker_id, uint64_t incarnation,
                         const v1::Ready& ready) {
  RETURN_IF_ERROR(CheckReached(run, worker_id, ready.step()));
  Run::Outbox outbox;
  bool starts_now = false;
  std::vector<std::string> live;  // Whose numbers may be new.
  int active = 0;
  bool is_back = false;  // It repeats what it said first.
  int64_t step = ready.step();
  {
    absl::MutexLock lock(&run.mutex);
    const Member* const before = run.membership.Find(worker_id);
    const bool begins = ready.anew() || before == nullptr || !before->record.was_ready();
    is_back = before != nullptr && before->record.was_ready() && before->record.step() > step;
    if (is_back) step = before->record.step();
    RETURN_IF_ERROR(run.membership.Ready(worker_id, incarnation, ready.step(), ready.anew()));
    if (begins) {
      run.tokens.Begin(worker_id, ready.step(), run.membership.Find(worker_id)->record.sites());
    }
    starts_now = run.StartIfDue();
    active = run.membership.active();
    if (starts_now) live = run.membership.LiveIds();
    for (const auto& [id, sink] : run.sinks) {
      const Member* const member = run.membership.Find(id);
      const bool told = starts_now ? member->record.state() == v1::Member::ACTIVE : id == worker_id;
      if (told && run.state.started()) run.AddStart(id, outbox);
    }
    // Its stream may have been broken when it was asked.
    const v1::Member& record = run.membership.Find(worker_id)->record;
    if (record.has_draining() && record.draining() == record.process_nonce()) {
      run.AddDirective(v1::Directive::DRAIN, 0, "asked to by the operator", worker_id, outbox);
    }
  }
  RETURN_IF_ERROR(run.SaveMember(worker_id));
  RETURN_IF_ERROR(run.SaveMembers(live));
  if (starts_now) RETURN_IF_ERROR(run.SaveRunState());
  run.Record("worker_ready",
             absl::StrCat("worker ", worker_id,
                          is_back ? " is back; it had reported step " : " is ready at step ", step),
             {{"worker", worker_id}, {"step", step}});
  if (starts_now) {
    run.Record("training_started", absl::StrCat("training starts with ", active, " workers"),
               {{"workers", active}});
  }
  run.Send(outbox);
  return absl::OkStatus();
}

absl::Status HandleHeartbeat(Run& run, Orders& orders, const std::string& worker_id,
                             uint64_t incarnation, const v1::Heartbeat& heartbeat) {
  RETURN_IF_ERROR(CheckReached(run, worker_id, heartbeat.step()));
  if (heartbeat.checkpoint_step() != -1)
    RETURN_IF_ERROR(CheckStep(run, heartbeat.checkpoint_step()));
  if (heartbeat.tokens() < 0 || heartbeat.tokens() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens must be 0 .. 2^48, the heartbeat says ", heartbeat.tokens()));
  }
  Run::Outbox outbox;
  bool attached = false;
  const std::vector<OpenRound> open_rounds = run.OpenRounds();
  {
    absl::MutexLock lock(&run.mutex);
    RETURN_IF_ERROR(run.membership.Heartbeat(worker_id, incarnation, heartbeat.step(),
                                             run.options.clock->Monotonic(),
                                             ProgressOf(heartbeat)));
    *run.membership.Account(worker_id)->mutable_heartbeat() = heartbeat;
    const auto sink = run.sinks.find(worker_id);
    attached = sink != run.sinks.end();
    if (attached) {
      v1::CoordinatorMessage message;
      v1::LeaseRenewed& renewed = *message.mutable_lease_renewed();
      renewed.set_lease_ms(run.options.config.membership().lease_ms());
      renewed.set_coordinator_unix_ms(absl::ToUnixMillis(run.options.clock->Now()));
      renewed.set_run_step(StartStep(open_rounds, run.membership.members(),
                                     StepByNow(run, open_rounds), run.PolicyNow()));
      if (heartbeat.has_steps_before_wait() && heartbeat.steps_before_wait() == 0) {
        renewed.set_waits_for(WaitsFor(run, worker_id, open_rounds));
      }
      outbox.emplace_back(sink->second, std::move(message));
    }
  }
  for (RunObserver* const observer : run.options.observers) {
    observer->OnHeartbeat(worker_id, heartbeat);
  }
  if (!attached) return absl::OkStatus();
  run.Send(outbox);
  return orders.ActOnProgress();
}

absl::Status HandleApplied(Run& run, const std::string& worker_id, uint64_t incarnation,
                           const v1::Applied& applied) {
  {
    absl::MutexLock lock(&run.mutex);
    RETURN_IF_ERROR(run.membership.Check(worker_id, incarnation));
  }
  ASSIGN_OR_RETURN(FragmentRounds* const fragment, run.FindFragment(applied.fragment()));
  ASSIGN_OR_RETURN(const uint64_t hash, fragment->versions().Hash(applied.round()));
  run.hash_checks.fetch_add(1);
  if (hash == applied.published_hash()) {
    for (RunObserver* const observer : run.options.observers) {
      observer->OnApplied(worker_id, applied.fragment(), applied.round());
    }
    return absl::OkStatus();
  }
  run.hash_mismatches.fetch_add(1);
  const std::string what = absl::StrCat(
      "after round ", applied.round(), " of fragment ", applied.fragment(), " worker ", worker_id,
      " holds ", HashToHex(applied.published_hash()), ", published is ", HashToHex(hash));
  run.Record("hash_mismatch", what,
             {{"worker", worker_id},
              {"fragment", applied.fragment()},
              {"round", applied.round()},
              {"worker_hash", HashToHex(applied.published_hash())},
              {"published_hash", HashToHex(hash)}});
  Run::Outbox outbox;
  {
    absl::MutexLock lock(&run.mutex);
    RETURN_IF_ERROR(run.membership.Expel(worker_id, incarnation));
    run.sinks.erase(worker_id);  // Its caller closes it, with what is returned.
    run.AddRoster(outbox);
  }
  RETURN_IF_ERROR(run.SaveMember(worker_id));
  run.Send(outbox);
  run.NoteIfFinished();
  return absl::DataLossError(
      absl::StrCat(what, "; the worker's copy is damaged: start it again without its checkpoint"));
}

absl::Status HandleLeave(Run& run, const std::string& worker_id, uint64_t incarnation,
                         const v1::Leave& leave) {
  Run::Outbox outbox;
  {
    absl::MutexLock lock(&run.mutex);
    // Who failed may be started again, and is as good as lost until then.
    if (leave.reason() == v1::Leave::FAILED) {
      RETURN_IF_ERROR(run.membership.Expel(worker_id, incarnation));
    } else {
      RETURN_IF_ERROR(run.membership.Leave(worker_id, incarnation));
      run.somebody_left = true;
      run.somebody_finished |= leave.reason() == v1::Leave::FINISHED;
    }
    run.sinks.erase(worker_id);
    run.AddRoster(outbox);
  }
  RETURN_IF_ERROR(run.SaveMember(worker_id));
  const bool known = leave.reason() >= v1::Leave::FINISHED && leave.reason() <= v1::Leave::FAILED;
  const std::string reason =
      known ? absl::AsciiStrToLower(v1::Leave::Reason_Name(leave.reason())) : "unspecified";
  run.Record("worker_left",
             absl::StrCat("worker ", worker_id, " left: ", reason,
                          leave.detail().empty() ? "" : absl::StrCat(" (", leave.detail(), ")")),
             {{"worker", worker_id}, {"reason", reason}, {"detail", leave.detail()}});
  run.Send(outbox);
  run.NoteIfFinished();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Welcome> Members::Join(const v1::Join& join, std::shared_ptr<SessionSink> sink) {
  RETURN_IF_ERROR(run_.Serving());
  absl::StatusOr<v1::Welcome> welcome = Admit(run_, join, std::move(sink));
  if (!welcome.ok() && !absl::IsUnavailable(welcome.status())) {
    run_.incidents.JoinRefused(join, welcome.status());
  }
  return welcome;
}

absl::Status Members::Handle(const std::string& worker_id, uint64_t incarnation,
                             const v1::WorkerMessage& message) {
  RETURN_IF_ERROR(run_.Serving());
  switch (message.message_case()) {
    case v1::WorkerMessage::kReady:
      return HandleReady(run_, worker_id, incarnation, message.ready());
    case v1::WorkerMessage::kHeartbeat:
      return HandleHeartbeat(run_, orders_, worker_id, incarnation, message.heartbeat());
    case v1::WorkerMessage::kApplied:
      return HandleApplied(run_, worker_id, incarnation, message.applied());
    case v1::WorkerMessage::kLeave:
      return HandleLeave(run_, worker_id, incarnation, message.leave());
    case v1::WorkerMessage::kJoin:
      return absl::InvalidArgumentError("only the first message of a session is a Join");
    case v1::WorkerMessage::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of the session is empty or of an unknown kind");
}

void Members::Disconnected(const std::string& worker_id, uint64_t incarnation,
                           const absl::Status& why) {
  {
    absl::MutexLock lock(&run_.mutex);
    const Member* const member = run_.membership.Find(worker_id);
    if (member == nullptr || member->record.incarnation() != incarnation || !member->live()) return;
    run_.membership.Disconnected(worker_id, incarnation);
    run_.sinks.erase(worker_id);
  }
  run_.Record("worker_disconnected",
              absl::StrCat("the session of worker ", worker_id, " is over (", why.message(),
                           "); its membership is kept until its lease ends"),
              {{"worker", worker_id},
               {"code", std::string(absl::StatusCodeToString(why.code()))},
               {"reason", std::string(why.message())}});
}

}  // namespace causeway::server
