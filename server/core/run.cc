#include "server/core/run.h"

#include "common/params/run_config.h"

namespace causeway::server {
namespace {

// Steps that a worker may have trained without contributing them: a delta that is being taken, one
// on its way and one that was late; and as many as a takeover may repeat.
int64_t ReserveSteps(const v1::SyncConfig& sync) {
  return 3 * int64_t{sync.steps_between_syncs()} + 2 * int64_t{MaxOverlapSteps(sync)} + 8;
}

// What a successor goes by until it hears from the worker.
v1::Heartbeat LastingPart(const v1::Heartbeat& heartbeat) {
  v1::Heartbeat part;
  part.set_step(heartbeat.step());
  part.set_tokens(heartbeat.tokens());
  part.set_train_loss(heartbeat.train_loss());
  part.set_compute_seconds(heartbeat.compute_seconds());
  part.set_blocked_seconds(heartbeat.blocked_seconds());
  part.set_checkpoint_step(heartbeat.checkpoint_step());
  return part;
}

}  // namespace

Tier TierOf(const Coordinator::Options& options) {
  const v1::MembershipConfig& membership = options.config.membership();
  Tier tier{.most_members = membership.max_workers(),
            .start_members = membership.start_workers(),
            .quorum = membership.quorum(),
            .tokens = options.config.train().tokens(),
            .outer = options.config.outer()};
  if (!options.region.has_value()) return tier;
  const RegionOptions& region = *options.region;
  tier.own_id = region.id;
  tier.regions = region.above;
  tier.regions.push_back(region.id);
  tier.under_parent = true;
  tier.most_members = region.sites;
  tier.start_members = region.sites;
  // The run's quorum is of all its workers, and its tokens are: the parent looks at these.
  tier.quorum = 1;
  tier.tokens = 0;
  // Its parent's parent, or the one above, has the run's: a region steps nothing and keeps no
  // state.
  tier.outer.set_optimizer(v1::OuterConfig::SGD);
  return tier;
}

Run::Run(Coordinator::Options given, FragmentPlan given_plan, Tier given_tier,
         std::unique_ptr<const OuterOptimizer> given_optimizer)
    : options(std::move(given)),
      plan(std::move(given_plan)),
      tier(std::move(given_tier)),
      schedule(plan.fragments(), options.config.sync().steps_between_syncs(),
               MaxOverlapSteps(options.config.sync())),
      policy({.quorum = tier.quorum,
              .grace = absl::Milliseconds(options.config.membership().grace_ms()),
              .adaptive = options.config.membership().adaptive_grace(),
              .overlap_steps = MaxOverlapSteps(options.config.sync())}),
      optimizer(std::move(given_optimizer)),
      config_hash(RunConfigHash(options.config)),
      membership(tier.most_members, absl::Milliseconds(options.config.membership().lease_ms())),
      draws(options.config.train().batch_sequences(), ReserveSteps(options.config.sync())),
      tokens(TokensPerStep(options.config), LargestPace(options.config) - 1),
      may_start(!tier.under_parent),
      incidents(options.events, options.clock,
                [this](const std::string& id, const std::string& text) { Tell(id, text); }) {
  merge_pool.threads = options.merge_pool;
}

absl::Status Run::Serving() const {
  absl::MutexLock lock(&mutex);
  RETURN_IF_ERROR(failure);
  if (shut_down) return absl::UnavailableError("the coordinator is shutting down");
  return absl::OkStatus();
}

absl::StatusOr<FragmentRounds*> Run::FindFragment(int fragment) const {
  if (fragment < 0 || fragment >= plan.fragments()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no fragment ", fragment, ": the run has ", plan.fragments(), " of them"));
  }
  return fragments[static_cast<size_t>(fragment)].get();
}

std::vector<OpenRound> Run::OpenRounds() const {
  std::vector<OpenRound> rounds;
  for (const auto& fragment : fragments) rounds.push_back(fragment->open_round());
  return rounds;
}

RoundPolicy Run::PolicyNow() const {
  RoundPolicy now = policy;
  now.stop_step = state.stop_step();
  return now;
}

int64_t Run::EndStep() const {
  const int64_t budget = options.config.train().steps();
  return state.stop_step() > 0 ? std::min(budget, state.stop_step()) : budget;
}

bool Run::RoundsAreDone() const {
  int64_t end = 0;
  {
    absl::MutexLock lock(&mutex);
    end = EndStep();
  }
  return std::ranges::all_of(OpenRounds(),
                             [&](const OpenRound& round) { return round.send_step > end; });
}

Coordinator::End Run::Ended(bool rounds_are_done) const {
  using End = Coordinator::End;
  if (!state.started() || membership.live() > 0) return End::kNotYet;
  const auto& members = membership.members();
  const int64_t end = EndStep();
  // At the end only a good-bye may be missing.
  if (rounds_are_done || somebody_finished ||
      std::ranges::any_of(members, [&](const auto& m) { return m.second.record.step() >= end; })) {
    return End::kReached;
  }
  // Before it, all have gone on purpose, and not to a former coordinator, whose run goes on.
  const bool all_left = std::ranges::all_of(
      members, [](const auto& m) { return m.second.record.state() == v1::Member::LEFT; });
  return somebody_left && all_left ? End::kAllLeft : End::kNotYet;
}

int64_t Run::NextDraw(const Member& member) const {
  return draws.NextDraw(member.record.own_data() ? kOwnData : member.record.data_slot(),
                        member.record.worker_id());
}

std::vector<int64_t> Run::NextDraws(const Member& member) const {
  std::vector<int64_t> next;
  for (int i = 0; i < member.record.sites(); ++i)
    next.push_back(draws.NextDraw(member.record.data_slot() + i, ""));
  return next;
}

void Run::GiveParts(const Member& member, int64_t step) {
  if (member.record.own_data()) return;
  for (int i = 0; i < member.workers(); ++i) draws.Give(member.record.data_slot() + i, step);
}

bool Run::StartIfDue() {
  if (state.started() || membership.active() < tier.start_members || !may_start) return false;
  state.set_started(true);
  state.set_started_unix_s(absl::ToDoubleSeconds(options.clock->Now() - absl::UnixEpoch()));
  membership.NumberByName();
  return true;
}

void Run::AddStart(const std::string& id, Outbox& outbox) const {
  const Member& member = *membership.Find(id);
  if (!sinks.contains(id)) return;
  AddDirective(v1::Directive::START, 0, "", id, outbox);
  v1::Directive& start = *outbox.back().second.mutable_directive();
  start.set_data_slot(member.record.data_slot());
  start.set_next_draw(NextDraw(member));
  for (const int64_t draw : NextDraws(member)) start.add_next_draws(draw);
  if (state.paused()) {
    AddDirective(v1::Directive::PAUSE, 0, state.pause_reason(), id, outbox);
  }
  // It may have missed the end of a pause while its stream was broken.
  if (!state.paused() && member.record.incarnation() > 1) {
    AddDirective(v1::Directive::RESUME, 0, "", id, outbox);
  }
  if (state.stop_step() > 0) {
    AddDirective(v1::Directive::STOP_AT_STEP, state.stop_step(), "the run ends there", id, outbox);
  }
  if (member.record.ordered_pace_milli() > 0) {
    AddDirective(v1::Directive::SET_PACE, member.record.ordered_from_step(), "as before", id,
                 outbox);
    outbox.back().second.mutable_directive()->set_pace_milli(member.record.ordered_pace_milli());
  }
}

void Run::AddDirective(v1::Directive::Action action, int64_t step, const std::string& reason,
                       const std::string& worker_id, Outbox& outbox) const {
  const auto sink = sinks.find(worker_id);
  if (sink == sinks.end()) return;
  v1::CoordinatorMessage message;
  message.mutable_directive()->set_action(action);
  message.mutable_directive()->set_step(step);
  message.mutable_directive()->set_reason(reason);
  outbox.emplace_back(sink->second, std::move(message));
}

void Run::AddDirectives(v1::Directive::Action action, int64_t step, const std::string& reason,
                        Outbox& outbox) const {
  for (const auto& [id, sink] : sinks) AddDirective(action, step, reason, id, outbox);
}

void Run::AddRoster(Outbox& outbox) const {
  v1::CoordinatorMessage message;
  for (std::string& id : membership.LiveIds()) {
    message.mutable_roster()->add_worker_ids(std::move(id));
  }
  for (const auto& [id, sink] : sinks) outbox.emplace_back(sink, message);
}

void Run::Broadcast(const v1::CoordinatorMessage& message) {
  Outbox outbox;
  {
    absl::MutexLock lock(&mutex);
    for (const auto& [id, sink] : sinks) outbox.emplace_back(sink, message);
  }
  Send(outbox);
}

void Run::Send(const Outbox& outbox) {
  for (const auto& [sink, message] : outbox) sink->Send(message);
}

void Run::Tell(const std::string& worker_id, const std::string& text) {
  Outbox outbox;
  {
    absl::MutexLock lock(&mutex);
    const auto sink = sinks.find(worker_id);
    if (sink == sinks.end()) return;
    v1::CoordinatorMessage message;
    message.mutable_notice()->set_text(text);
    outbox.emplace_back(sink->second, std::move(message));
  }
  Send(outbox);
}

absl::Status Run::Order(absl::FunctionRef<absl::Status(Outbox& outbox)> change,
                        absl::string_view event, const std::string& message,
                        const nlohmann::json& fields) {
  RETURN_IF_ERROR(Serving());
  Outbox outbox;
  {
    absl::MutexLock lock(&mutex);
    RETURN_IF_ERROR(change(outbox));
  }
  RETURN_IF_ERROR(SaveRunState());
  Record(event, message, fields);
  Send(outbox);
  return absl::OkStatus();
}

void Run::NoteIfFinished() {
  int64_t steps = 0;
  const bool rounds_are_done = RoundsAreDone();
  {
    absl::MutexLock lock(&mutex);
    if (state.finish_recorded() || Ended(rounds_are_done) == Coordinator::End::kNotYet) return;
    state.set_finish_recorded(true);
    steps = membership.largest_step();
  }
  if (!SaveRunState().ok()) return;
  Record("run_finished", absl::StrCat("every worker has left; the run did ", steps, " steps"),
         {{"steps", steps}});
}

absl::Status Run::SaveMembers(std::span<const std::string> worker_ids) {
  if (worker_ids.empty()) return absl::OkStatus();
  absl::Status status;
  {
    absl::MutexLock save_lock(&save_mutex);
    std::vector<std::map<std::string, std::set<int64_t>>> rejections;
    for (const auto& fragment : fragments) rejections.push_back(fragment->rejections());
    std::vector<v1::Member> records;
    {
      absl::MutexLock lock(&mutex);
      for (const std::string& id : worker_ids) {
        v1::Member& record = records.emplace_back(membership.Find(id)->record);
        *record.mutable_heartbeat() = LastingPart(record.heartbeat());
        record.clear_rejected();
        if (std::ranges::none_of(rejections, [&](const auto& of) { return of.contains(id); })) {
          continue;
        }
        for (auto& of_fragment : rejections) {
          const std::set<int64_t>& out = of_fragment[id];
          record.add_rejected()->mutable_rounds()->Assign(out.begin(), out.end());
        }
      }
    }
    status = options.store->SaveMembers(records);
  }
  if (!status.ok()) status = Fail(status);
  return status;
}

absl::Status Run::SaveMember(const std::string& worker_id) { return SaveMembers({&worker_id, 1}); }

absl::Status Run::SaveRunState() {
  absl::Status status;
  {
    absl::MutexLock save_lock(&save_mutex);
    v1::State now;
    {
      absl::MutexLock lock(&mutex);
      now = state;
    }
    now.set_hash_checks(hash_checks.load());
    now.set_hash_mismatches(hash_mismatches.load());
    status = options.store->SaveRunState(now);
  }
  if (!status.ok()) status = Fail(status);
  return status;
}

absl::Status Run::Fail(const absl::Status& status) {
  const std::string message = absl::StrCat(
      "the coordinator stopped: ", status.message(),
      absl::IsResourceExhausted(status)
          ? "; make room there and start it again: the run goes on where it was, and its workers "
            "wait for that"
          : "");
  // A training that diverged is at its end. A disk can be mended: the workers wait for a successor.
  const absl::Status told = absl::IsFailedPrecondition(status) ? absl::InternalError(message)
                                                               : absl::UnavailableError(message);
  Sinks told_of_it;
  {
    absl::MutexLock lock(&mutex);
    if (!failure.ok()) return failure;
    if (shut_down) return told;
    failure = told;
    told_of_it.swap(sinks);
  }
  Record("failed", std::string(told.message()), nlohmann::json::object());
  for (const auto& fragment : fragments) {
    for (const PullCallback& waiter : fragment->versions().TakeWaiters()) waiter(told);
  }
  for (const auto& [id, sink] : told_of_it) sink->Close(told);
  return told;
}

}  // namespace causeway::server
