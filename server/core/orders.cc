#include "server/core/run.h"

#include "absl/strings/str_join.h"
#include "server/round/pace.h"

namespace causeway::server {
namespace {

int64_t TokenBudget(const Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run.mutex) {
  return run.state.stop_tokens() > 0 ? run.state.stop_tokens() : run.tier.tokens;
}

// One that is lost may train on, and be back.
bool MayTrain(const Member& member) {
  return member.live() || member.record.state() == v1::Member::LOST;
}

}  // namespace

absl::Status Orders::Pause(const std::string& reason) {
  const auto pause = [&](Run::Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex) {
    run_.state.set_paused(true);
    run_.state.set_pause_reason(reason);
    run_.AddDirectives(v1::Directive::PAUSE, 0, reason, outbox);
    return absl::OkStatus();
  };
  return run_.Order(pause, "paused", absl::StrCat("paused: ", reason), {{"reason", reason}});
}

absl::Status Orders::Resume() {
  const auto resume = [&](Run::Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex) {
    run_.state.set_paused(false);
    run_.state.clear_pause_reason();
    run_.AddDirectives(v1::Directive::RESUME, 0, "", outbox);
    return absl::OkStatus();
  };
  return run_.Order(resume, "resumed", "resumed", nlohmann::json::object());
}

absl::Status Orders::Drain(const std::string& worker_id) {
  RETURN_IF_ERROR(run_.Serving());
  Run::Outbox outbox;
  std::vector<std::string> asked;
  {
    absl::MutexLock lock(&run_.mutex);
    if (!worker_id.empty()) {
      const Member* const member = run_.membership.Find(worker_id);
      if (member == nullptr || !MayTrain(*member)) {
        return absl::NotFoundError(absl::StrCat(
            "no worker ", worker_id,
            " is a member; there are: ", absl::StrJoin(run_.membership.LiveIds(), ", ")));
      }
    }
    for (const auto& [id, member] : run_.membership.members()) {
      if (!MayTrain(member) || (!worker_id.empty() && id != worker_id)) continue;
      asked.push_back(id);
      v1::Member& account = *run_.membership.Account(id);
      account.set_draining(account.process_nonce());
      run_.AddDirective(v1::Directive::DRAIN, 0, "asked to by the operator", id, outbox);
    }
  }
  RETURN_IF_ERROR(run_.SaveMembers(asked));
  run_.Record("draining",
              worker_id.empty() ? "asked all workers to drain"
                                : absl::StrCat("asked worker ", worker_id, " to drain"),
              {{"worker", worker_id}});
  run_.Send(outbox);
  return absl::OkStatus();
}

absl::Status Orders::Reject(const v1::RejectRequest& order) {
  RETURN_IF_ERROR(run_.Serving());
  const std::string& id = order.worker_id();
  {
    absl::MutexLock lock(&run_.mutex);
    if (run_.membership.Find(id) == nullptr) {
      return absl::NotFoundError(absl::StrCat("no worker ", id, " ever joined this run"));
    }
  }
  const bool whole = order.round() == 0;
  if (whole) {
    for (const auto& fragment : run_.fragments) {
      RETURN_IF_ERROR(fragment->Reject(id, 0, order.undo()));
    }
    absl::MutexLock lock(&run_.mutex);
    run_.membership.SetRejected(id, !order.undo());
  } else {
    if (order.fragment() < 0 || order.fragment() >= run_.plan.fragments()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no fragment ", order.fragment(),
                                                     ": the run has ", run_.plan.fragments()));
    }
    ASSIGN_OR_RETURN(FragmentRounds* const fragment, run_.FindFragment(order.fragment()));
    RETURN_IF_ERROR(fragment->Reject(id, order.round(), order.undo()));
  }
  RETURN_IF_ERROR(run_.SaveMember(id));
  const std::string what =
      whole ? absl::StrCat("all deltas of worker ", id, ", from the open rounds on,")
            : absl::StrCat("the delta of worker ", id, " to round ", order.round(), " of fragment ",
                           order.fragment());
  // An order is recorded whatever the worker's budget of events.
  run_.options.events->Record(
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

absl::Status Orders::StopAtStep(int64_t step) {
  const auto stop = [&](Run::Outbox& outbox)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex) -> absl::Status {
    if (step < 1) {
      return absl::InvalidArgumentError(absl::StrCat("at_step must be 1 or more, it is ", step));
    }
    if (run_.membership.largest_step() > step) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the run has done ", run_.membership.largest_step(), " steps, it cannot stop at ", step));
    }
    if (const int64_t steps = run_.options.config.train().steps(); step > steps) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the run ends at step ", steps, " (train.steps), it cannot go on to ", step));
    }
    run_.state.set_stop_step(step);
    run_.AddDirectives(v1::Directive::STOP_AT_STEP, step, "asked to by the operator", outbox);
    return absl::OkStatus();
  };
  return run_.Order(stop, "stopping", absl::StrCat("training ends at step ", step),
                    {{"step", step}});
}

absl::Status Orders::StopAtTokens(int64_t tokens) {
  const auto stop = [&](Run::Outbox&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex) -> absl::Status {
    if (tokens < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("at_tokens must be 1 or more, it is ", tokens));
    }
    const int64_t trained = TokensTrained(Believed(run_.membership.members(), run_.options.config));
    if (trained >= tokens) {
      return absl::FailedPreconditionError(
          absl::StrCat("the run has trained ", trained, " tokens, it cannot stop at ", tokens,
                       "; to end it as soon as possible, drain it or give at_step"));
    }
    run_.state.set_stop_tokens(tokens);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(run_.Order(
      stop, "stopping", absl::StrCat("training ends when ", tokens, " tokens have been trained"),
      {{"tokens", tokens}}));
  return ActOnProgress();
}

v1::InvitationList Orders::Invitations() const {
  absl::MutexLock lock(&run_.mutex);
  return run_.state.invitations();
}

absl::Status Orders::KeepInvitations(const v1::InvitationList& list) {
  RETURN_IF_ERROR(run_.Serving());
  {
    absl::MutexLock lock(&run_.mutex);
    *run_.state.mutable_invitations() = list;
  }
  return run_.SaveRunState();
}

absl::Status Orders::ActOnProgress() {
  const v1::RunConfig& config = run_.options.config;
  Run::Outbox outbox;
  std::map<std::string, int64_t> paces;
  int64_t pace_start = 0;
  std::optional<int64_t> stop;
  {
    absl::MutexLock lock(&run_.mutex);
    if (!run_.state.started()) return absl::OkStatus();
    pace_start = PaceStart(run_.membership.largest_step(), config.sync().steps_between_syncs());
    const std::map<std::string, Member> members = Believed(run_.membership.members(), config);
    // A region orders paces among its own sites.
    std::map<std::string, Member> paced = members;
    std::erase_if(paced, [](const auto& entry) { return entry.second.region(); });
    paces = NewPaces(paced, config.membership().max_pace());
    for (const auto& [id, pace] : paces) {
      run_.membership.OrderPace(id, pace, pace_start);
      if (!run_.sinks.contains(id)) continue;  // It is told when it is ready again.
      run_.AddDirective(v1::Directive::SET_PACE, pace_start, "inner steps of different length", id,
                        outbox);
      outbox.back().second.mutable_directive()->set_pace_milli(pace);
    }
    if (TokenBudget(run_) > 0) {
      const int64_t tokens = TokensPerStep(config);
      stop = StopStepForTokens(members, tokens, TokenBudget(run_),
                               absl::Milliseconds(config.membership().lease_ms()));
    }
    // Announced once: later estimates differ a little, and somebody may be there already.
    if (stop.has_value() && (*stop >= config.train().steps() || run_.budget_announced ||
                             (run_.state.stop_step() > 0 && run_.state.stop_step() <= *stop))) {
      stop.reset();
    }
    if (stop.has_value()) {
      run_.budget_announced = true;
      run_.state.set_stop_step(*stop);
      run_.AddDirectives(v1::Directive::STOP_AT_STEP, *stop, "the token budget is spent there",
                         outbox);
    }
  }
  if (stop.has_value()) {
    RETURN_IF_ERROR(run_.SaveRunState());
    run_.Record("stopping",
                absl::StrCat("training ends at step ", *stop, ": the token budget is spent"),
                {{"step", *stop}});
  }
  for (const auto& [id, pace] : paces) {
    RETURN_IF_ERROR(run_.SaveMember(id));
    run_.Record(
        "pace_set",
        absl::StrCat("from step ", pace_start, " an inner step of worker ", id, " counts for ",
                     static_cast<double>(pace) / kPaceOne, " steps of the schedule"),
        {{"worker", id},
         {"pace", static_cast<double>(pace) / kPaceOne},
         {"from_step", pace_start}});
  }
  run_.Send(outbox);
  return absl::OkStatus();
}

}  // namespace causeway::server
