// Administration and the end of CoordinatorImpl: status, directives, shutdown.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "server/core/coordinator_impl.h"
#include "server/round/pace.h"
#include "server/round/token_budget.h"

namespace causeway::server {
namespace {

v1::WorkerStatus::State StateToProto(v1::Member::State state) {
  switch (state) {
    case v1::Member::JOINING:
      return v1::WorkerStatus::JOINING;
    case v1::Member::ACTIVE:
      return v1::WorkerStatus::ACTIVE;
    case v1::Member::LOST:
      return v1::WorkerStatus::LOST;
    case v1::Member::LEFT:
      return v1::WorkerStatus::LEFT;
    default:
      return v1::WorkerStatus::STATE_UNSPECIFIED;
  }
}

}  // namespace

v1::RunStatus CoordinatorImpl::GetStatus() const {
  v1::RunStatus status;
  status.set_run_id(options_.run_id);
  *status.mutable_config() = options_.config;
  status.set_unix_ms(absl::ToUnixMillis(options_.clock->Now()));
  std::map<std::string, Member> members;
  RoundPolicy policy;
  const bool rounds_are_done = RoundsAreDone();
  {
    absl::MutexLock lock(&members_mutex_);
    members = membership_.members();
    policy = PolicyNow();
    status.set_started(state_.started());
    status.set_data_fingerprint(state_.data_fingerprint());
    status.set_paused(state_.paused());
    status.set_finished(FinishedLocked(rounds_are_done));
    status.set_run_step(membership_.largest_step());
    int64_t tokens = 0;
    for (const auto& [id, member] : members) {
      const auto found = accounts_.find(id);
      const v1::Member account = found == accounts_.end() ? v1::Member() : found->second;
      const v1::Heartbeat& heartbeat = account.heartbeat();
      tokens += heartbeat.tokens();
      v1::WorkerStatus& worker = *status.add_workers();
      worker.set_worker_id(id);
      worker.set_state(StateToProto(member.state));
      worker.set_incarnation(member.incarnation);
      worker.set_data_slot(member.data_slot);
      worker.set_step(member.step);
      worker.set_tokens(heartbeat.tokens());
      worker.set_tokens_per_second(heartbeat.tokens_per_second());
      worker.set_train_loss(heartbeat.train_loss());
      const double seconds = heartbeat.compute_seconds() + heartbeat.blocked_seconds();
      worker.set_compute_utilization(seconds > 0 ? heartbeat.compute_seconds() / seconds : 0);
      worker.set_bytes_up(account.bytes_up());
      worker.set_bytes_down(account.bytes_down() + account.state_bytes_down());
      *worker.mutable_link() = heartbeat.link();
      worker.set_device(account.device());
      worker.set_software_version(account.software_version());
      worker.set_rejected(member.rejected);
      worker.set_pace(static_cast<double>(member.progress.pace_milli) / kPaceOne);
      worker.set_late_answers(std::clamp(heartbeat.late_answers(), 0, plan_.fragments()));
      if (heartbeat.has_steps_before_wait()) {
        // A fragment's next send is at most a period ahead, and its merge less than one later.
        const int64_t most = 2 * int64_t{options_.config.sync().steps_between_syncs()};
        worker.set_steps_before_wait(std::clamp<int64_t>(heartbeat.steps_before_wait(), 0, most));
      }
      worker.set_step_seconds(absl::ToDoubleSeconds(member.progress.step_time()));
      worker.set_region(member.region());
      if (!member.region()) continue;
      for (const v1::SiteReport& site : heartbeat.sites()) {
        if (worker.sites_size() >= options_.config.membership().max_workers()) break;
        *worker.add_sites() = site;
      }
    }
    status.set_tokens(tokens);
  }
  for (int i = 0; i < plan_.fragments(); ++i) {
    v1::FragmentStatus& entry = *status.add_fragments();
    entry.set_fragment(i);
    entry.set_values(plan_.range(i).size());
    const FragmentRounds& fragment = *fragments_[static_cast<size_t>(i)];
    const OpenRound round = fragment.open_round();
    const int64_t version = round.round - 1;
    entry.set_published_version(version);
    entry.set_published_hash(fragment.PublishedHash(version).value_or(0));
    for (const auto& [id, arrival] : round.arrivals) entry.add_contributed(id);
    for (const auto& [id, arrival] : round.quarantined) entry.add_quarantined(id);
    entry.set_waiting_for(Decide(options_.clock->Monotonic(), round, members, policy).reason);
  }
  return status;
}

absl::Status CoordinatorImpl::Pause(const std::string& reason) {
  RETURN_IF_ERROR(Serving());
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    state_.set_paused(true);
    state_.set_pause_reason(reason);
    for (const auto& [id, sink] : sinks_) {
      AddDirective(v1::Directive::PAUSE, 0, reason, id, outbox);
    }
  }
  RETURN_IF_ERROR(SaveRunState());
  Record("paused", absl::StrCat("paused: ", reason), {{"reason", reason}});
  Send(outbox);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::Resume() {
  RETURN_IF_ERROR(Serving());
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    state_.set_paused(false);
    state_.clear_pause_reason();
    for (const auto& [id, sink] : sinks_) AddDirective(v1::Directive::RESUME, 0, "", id, outbox);
  }
  RETURN_IF_ERROR(SaveRunState());
  Record("resumed", "resumed", nlohmann::json::object());
  Send(outbox);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::Drain(const std::string& worker_id) {
  RETURN_IF_ERROR(Serving());
  Outbox outbox;
  std::vector<std::string> asked;
  {
    absl::MutexLock lock(&members_mutex_);
    if (!worker_id.empty()) {
      const Member* const member = membership_.Find(worker_id);
      if (member == nullptr || !member->live()) {
        return absl::NotFoundError(
            absl::StrCat("no worker ", worker_id,
                         " is a member; there are: ", absl::StrJoin(membership_.LiveIds(), ", ")));
      }
    }
    for (const std::string& id : membership_.LiveIds()) {
      if (!worker_id.empty() && id != worker_id) continue;
      asked.push_back(id);
      accounts_[id].set_draining(membership_.Find(id)->process_nonce);
      AddDirective(v1::Directive::DRAIN, 0, "asked to by the operator", id, outbox);
    }
  }
  RETURN_IF_ERROR(SaveMembers(asked));
  Record("draining",
         worker_id.empty() ? "asked all workers to drain"
                           : absl::StrCat("asked worker ", worker_id, " to drain"),
         {{"worker", worker_id}});
  Send(outbox);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::Reject(const v1::RejectRequest& order) {
  RETURN_IF_ERROR(Serving());
  const std::string& id = order.worker_id();
  {
    absl::MutexLock lock(&members_mutex_);
    if (membership_.Find(id) == nullptr) {
      return absl::NotFoundError(absl::StrCat("no worker ", id, " ever joined this run"));
    }
  }
  const bool whole = order.round() == 0;
  if (whole) {
    for (const auto& fragment : fragments_) {
      RETURN_IF_ERROR(fragment->Reject(id, 0, order.undo()));
    }
    absl::MutexLock lock(&members_mutex_);
    membership_.SetRejected(id, !order.undo());
  } else {
    if (order.fragment() < 0 || order.fragment() >= plan_.fragments()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no fragment ", order.fragment(),
                                                     ": the run has ", plan_.fragments()));
    }
    ASSIGN_OR_RETURN(FragmentRounds* const fragment, FindFragment(order.fragment()));
    RETURN_IF_ERROR(fragment->Reject(id, order.round(), order.undo()));
  }
  RETURN_IF_ERROR(SaveMember(id));
  const std::string what =
      whole ? absl::StrCat("all deltas of worker ", id, ", from the open rounds on,")
            : absl::StrCat("the delta of worker ", id, " to round ", order.round(), " of fragment ",
                           order.fragment());
  // An order is recorded whatever the worker's budget of events.
  options_.events->Record(
      "worker_rejected",
      absl::StrCat("the operator ", order.undo() ? "lets in " : "keeps out ", what,
                   order.reason().empty() ? "" : " because: ", order.reason()),
      {{"worker", id},
       {"fragment", whole ? -1 : order.fragment()},
       {"round", order.round()},
       {"undo", order.undo()},
       {"reason", order.reason()}});
  // A round that waited for it closes with the next Tick.
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::StopAtStep(int64_t step) {
  RETURN_IF_ERROR(Serving());
  if (step < 1) {
    return absl::InvalidArgumentError(absl::StrCat("at_step must be 1 or more, it is ", step));
  }
  Outbox outbox;
  {
    absl::MutexLock lock(&members_mutex_);
    if (membership_.largest_step() > step) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the run has done ", membership_.largest_step(), " steps, it cannot stop at ", step));
    }
    state_.set_stop_step(step);
    for (const auto& [id, sink] : sinks_) {
      AddDirective(v1::Directive::STOP_AT_STEP, step, "asked to by the operator", id, outbox);
    }
  }
  RETURN_IF_ERROR(SaveRunState());
  Record("stopping", absl::StrCat("training ends at step ", step), {{"step", step}});
  Send(outbox);
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::StopAtTokens(int64_t tokens) {
  RETURN_IF_ERROR(Serving());
  if (tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("at_tokens must be 1 or more, it is ", tokens));
  }
  {
    absl::MutexLock lock(&members_mutex_);
    const int64_t trained = TokensTrained(Believed(membership_.members(), options_.config));
    if (trained >= tokens) {
      return absl::FailedPreconditionError(
          absl::StrCat("the run has trained ", trained, " tokens, it cannot stop at ", tokens,
                       "; to end it as soon as possible, drain it or give at_step"));
    }
    state_.set_stop_tokens(tokens);
  }
  RETURN_IF_ERROR(SaveRunState());
  Record("stopping", absl::StrCat("training ends when ", tokens, " tokens have been trained"),
         {{"tokens", tokens}});
  return ActOnProgress();
}

int64_t CoordinatorImpl::TokenBudget() const {
  if (region()) return state_.stop_tokens();  // The hub sees to the run's.
  return state_.stop_tokens() > 0 ? state_.stop_tokens() : options_.config.train().tokens();
}

absl::Status CoordinatorImpl::ActOnProgress() {
  const v1::RunConfig& config = options_.config;
  Outbox outbox;
  std::map<std::string, int64_t> paces;
  int64_t pace_start = 0;
  std::optional<int64_t> stop;
  {
    absl::MutexLock lock(&members_mutex_);
    if (!state_.started()) return absl::OkStatus();
    pace_start = PaceStart(membership_.largest_step(), config.sync().steps_between_syncs());
    const std::map<std::string, Member> members = Believed(membership_.members(), config);
    // A region orders paces among its own sites.
    std::map<std::string, Member> paced = members;
    std::erase_if(paced, [](const auto& entry) { return entry.second.region(); });
    paces = NewPaces(paced, config.membership().max_pace());
    for (const auto& [id, pace] : paces) {
      membership_.OrderPace(id, pace, pace_start);
      if (!sinks_.contains(id)) continue;  // It is told when it is ready again.
      AddDirective(v1::Directive::SET_PACE, pace_start, "inner steps of different length", id,
                   outbox);
      outbox.back().second.mutable_directive()->set_pace_milli(pace);
    }
    if (TokenBudget() > 0) {
      const int64_t tokens = TokensPerStep(config);
      stop = StopStepForTokens(members, tokens, TokenBudget(),
                               absl::Milliseconds(config.membership().lease_ms()));
    }
    // Announced once: later estimates differ a little, and somebody may be there already.
    if (stop.has_value() && (*stop >= config.train().steps() || budget_announced_ ||
                             (state_.stop_step() > 0 && state_.stop_step() <= *stop))) {
      stop.reset();
    }
    if (stop.has_value()) {
      budget_announced_ = true;
      state_.set_stop_step(*stop);
      for (const auto& [id, sink] : sinks_) {
        AddDirective(v1::Directive::STOP_AT_STEP, *stop, "the token budget is spent there", id,
                     outbox);
      }
    }
  }
  if (stop.has_value()) {
    RETURN_IF_ERROR(SaveRunState());
    Record("stopping", absl::StrCat("training ends at step ", *stop, ": the token budget is spent"),
           {{"step", *stop}});
  }
  for (const auto& [id, pace] : paces) {
    RETURN_IF_ERROR(SaveMember(id));
    Record("pace_set",
           absl::StrCat("from step ", pace_start, " an inner step of worker ", id, " counts for ",
                        static_cast<double>(pace) / kPaceOne, " steps of the schedule"),
           {{"worker", id},
            {"pace", static_cast<double>(pace) / kPaceOne},
            {"from_step", pace_start}});
  }
  Send(outbox);
  return absl::OkStatus();
}

int64_t CoordinatorImpl::EndStep() const {
  const int64_t budget = options_.config.train().steps();
  return state_.stop_step() > 0 ? std::min(budget, state_.stop_step()) : budget;
}

bool CoordinatorImpl::RoundsAreDone() const {
  int64_t end = 0;
  {
    absl::MutexLock lock(&members_mutex_);
    end = EndStep();
  }
  return std::ranges::all_of(OpenRounds(),
                             [&](const OpenRound& round) { return round.send_step > end; });
}

bool CoordinatorImpl::ReachedItsEndLocked(bool rounds_are_done) const {
  if (!state_.started() || membership_.live() > 0) return false;
  const auto& members = membership_.members();
  const int64_t end = EndStep();
  // At the end only a good-bye may be missing.
  return rounds_are_done || somebody_finished_ ||
         std::any_of(members.begin(), members.end(),
                     [&](const auto& m) { return m.second.step >= end; });
}

bool CoordinatorImpl::FinishedLocked(bool rounds_are_done) const {
  if (ReachedItsEndLocked(rounds_are_done)) return true;
  if (!state_.started() || membership_.live() > 0) return false;
  const auto& members = membership_.members();
  // Before it, all have gone on purpose, and not to a former coordinator, whose run goes on.
  return somebody_left_ && std::all_of(members.begin(), members.end(), [](const auto& m) {
           return m.second.state == v1::Member::LEFT;
         });
}

bool CoordinatorImpl::ReachedItsEnd() const {
  const bool rounds_are_done = RoundsAreDone();
  absl::MutexLock lock(&members_mutex_);
  return ReachedItsEndLocked(rounds_are_done);
}

bool CoordinatorImpl::Finished() const {
  const bool rounds_are_done = RoundsAreDone();
  absl::MutexLock lock(&members_mutex_);
  return FinishedLocked(rounds_are_done);
}

absl::Status CoordinatorImpl::Health() const {
  absl::MutexLock lock(&members_mutex_);
  return failure_;
}

RunSummary CoordinatorImpl::Summarize() const {
  RunSummary summary;
  summary.run_id = options_.run_id;
  summary.config = options_.config;
  summary.parameters = plan_.parameters();
  for (const auto& fragment : fragments_) summary.rounds += fragment->version();
  summary.hash_checks = hash_checks_.load();
  summary.hash_mismatches = hash_mismatches_.load();
  summary.ended_unix_s = absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch());
  absl::MutexLock lock(&members_mutex_);
  summary.steps = membership_.largest_step();
  summary.started_unix_s = state_.started_unix_s();
  summary.workers = accounts_;
  return summary;
}

absl::Status CoordinatorImpl::Shutdown() {
  // The result includes contributions of workers that have left since the last Tick.
  for (const auto& fragment : fragments_) Advance(*fragment);
  Sinks sinks;
  {
    absl::MutexLock lock(&members_mutex_);
    if (shut_down_) return absl::OkStatus();
    shut_down_ = true;
    sinks.swap(sinks_);
  }
  const absl::Status told = absl::UnavailableError("the coordinator is shutting down");
  for (const auto& fragment : fragments_) {
    for (const PullCallback& waiter : fragment->TakeWaiters()) waiter(told);
  }
  for (const auto& [id, sink] : sinks) sink->Close(told);
  {
    absl::MutexLock lock(&members_mutex_);
    members_mutex_.Await(absl::Condition(
        +[](int* calls) { return *calls == 0; }, &calls_));
  }
  std::vector<std::string> ids;
  {
    absl::MutexLock lock(&members_mutex_);
    // The store holds what was published; what came after that is not to be trusted.
    if (!failure_.ok()) return failure_;
    ids = membership_.LiveIds();
  }
  for (const auto& fragment : fragments_) RETURN_IF_ERROR(fragment->SaveSnapshot());
  RETURN_IF_ERROR(SaveMembers(ids));
  RETURN_IF_ERROR(SaveRunState());
  return options_.store->SaveSummary(SummaryToJson(Summarize(), plan_.fragments()));
}

std::vector<float> CoordinatorImpl::PublishedParameters() const {
  std::vector<float> values(static_cast<size_t>(plan_.arena_size()));
  for (const auto& fragment : fragments_) {
    const FragmentRange& range = plan_.range(fragment->fragment());
    const absl::Status copied = fragment->CopyPublished(std::span(values).subspan(
        static_cast<size_t>(range.begin), static_cast<size_t>(range.size())));
    if (!copied.ok()) Log().error("{}", std::string(copied.message()));
  }
  return values;
}

}  // namespace causeway::server
