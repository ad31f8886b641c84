#include "server/core/run.h"

namespace causeway::server {
namespace {

// A fault of the coordinator's disk may pass: no member ends by it.
absl::Status FaultPasses(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

absl::Status CheckPush(const Run& run, const v1::PushHeader& header) {
  RETURN_IF_ERROR(run.Serving());
  RETURN_IF_ERROR(CheckRunId("push", header.run_id(), run.options.run_id));
  RETURN_IF_ERROR(CheckEpoch(header.worker_id(), header.epoch(), run.epoch));
  absl::MutexLock lock(&run.mutex);
  absl::Status member = run.membership.Check(header.worker_id(), header.incarnation());
  // Not ABORTED, which would say that the round closed: if it is the same process, which has
  // attached again meanwhile, the round still expects this contribution.
  if (absl::IsAborted(member)) {
    return absl::UnavailableError(
        absl::StrCat(member.message(), "; if it is yours, repeat the push with it"));
  }
  return member;
}

struct DroppedDraws {
  int foreign = 0;  // Ranges of parts of the data that the worker never had.
  int ahead = 0;    // Ranges that go on beyond what it can have trained; cut there.
};

// Takes out of the header what cannot be.
DroppedDraws DropImpossibleDraws(const Run& run, const FragmentRounds& fragment,
                                 v1::PushHeader& header) {
  DroppedDraws dropped;
  // A delta to a round that does not exist is refused.
  if (header.round() < 1 || header.round() > fragment.versions().newest() + 1) return dropped;
  const int64_t step = run.schedule.SendStep(fragment.fragment(), header.round());
  auto& draws = *header.mutable_draws();
  absl::MutexLock lock(&run.mutex);
  const Member* const member = run.membership.Find(header.worker_id());
  const auto cannot_be = [&](v1::DrawRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run.mutex) {
    if (range.data_slot() == kOwnData) return false;  // It is nobody else's.
    if (member == nullptr || !member->had_slot(range.data_slot())) {
      ++dropped.foreign;
      return true;
    }
    const int64_t end = run.draws.PossibleEnd(range.data_slot(), step);
    if (range.end() <= end) return false;
    ++dropped.ahead;
    range.set_end(end);
    return range.begin() >= end;
  };
  draws.erase(std::remove_if(draws.begin(), draws.end(), cannot_be), draws.end());
  return dropped;
}

// Lowers the header's tokens to what its worker can have trained. Returns what it claimed.
int64_t CutTokens(const Run& run, const FragmentRounds& fragment, v1::PushHeader& header) {
  const int64_t claimed = header.tokens();
  if (header.round() < 1 || header.round() > fragment.versions().newest() + 1) return claimed;
  const int64_t step = run.schedule.SendStep(fragment.fragment(), header.round());
  absl::MutexLock lock(&run.mutex);
  const int64_t most = run.tokens.Most(fragment.fragment(), header.worker_id(), step);
  if (claimed > most) header.set_tokens(most);
  return claimed;
}

}  // namespace

absl::StatusOr<std::optional<v1::PushResponse>> RoundsImpl::BeginPush(const v1::PushHeader& header,
                                                                      RoundClosed closed) {
  RETURN_IF_ERROR(CheckPush(run_, header));
  ASSIGN_OR_RETURN(FragmentRounds* const fragment, run_.FindFragment(header.fragment()));
  const absl::StatusOr<std::optional<v1::PushResponse>> held =
      fragment->BeginPush(header, std::move(closed));
  if (absl::IsAborted(held.status())) run_.incidents.Late(header, held.status());
  if (!held.ok() || held->has_value()) return held;
  // Before it is sent rather than after.
  const absl::Status room =
      run_.options.store->CheckRoom(static_cast<uint64_t>(header.total_bytes()));
  run_.incidents.NoteRoom(room);
  RETURN_IF_ERROR(FaultPasses(room));
  for (RunObserver* const observer : run_.options.observers) observer->OnPushBegun(header);
  return std::nullopt;
}

std::vector<double> RoundsImpl::MeasureLeaf(int fragment, int64_t round, int64_t leaf,
                                            std::span<const uint8_t> bytes) const {
  const absl::StatusOr<FragmentRounds*> found = run_.FindFragment(fragment);
  if (!found.ok()) return {};
  return (*found)->MeasureLeaf(round, leaf, bytes);
}

absl::StatusOr<v1::PushResponse> RoundsImpl::Contribute(const v1::PushHeader& claimed,
                                                        ReceivedObject object) {
  const Run::Call call(run_);
  RETURN_IF_ERROR(CheckPush(run_, claimed));
  v1::PushHeader header = claimed;
  ASSIGN_OR_RETURN(FragmentRounds* const fragment, run_.FindFragment(header.fragment()));
  // The delta counts, the claim does not: nobody keeps others from the text of their parts.
  const DroppedDraws dropped = DropImpossibleDraws(run_, *fragment, header);
  const int64_t claimed_tokens = CutTokens(run_, *fragment, header);
  const absl::StatusOr<AddedContribution> added = fragment->Add(header, std::move(object));
  if (IsFatal(added.status())) return run_.Fail(added.status());
  if (absl::IsAborted(added.status())) run_.incidents.Late(header, added.status());
  if (absl::IsResourceExhausted(added.status())) run_.incidents.NoteRoom(added.status());
  if (added.ok() && !added->response.duplicate()) {
    {
      absl::MutexLock lock(&run_.mutex);
      v1::Member& account = *run_.membership.Account(header.worker_id());
      account.set_bytes_up(account.bytes_up() + header.total_bytes());
      run_.draws.Add(header.worker_id(), DrawsOf(header.draws()),
                     run_.schedule.SendStep(header.fragment(), header.round()));
      run_.tokens.Add(header.fragment(), header.worker_id(), header.tokens(),
                      run_.schedule.SendStep(header.fragment(), header.round()));
    }
    for (RunObserver* const observer : run_.options.observers) {
      observer->OnContributed(header, added->quarantined());
    }
    if (dropped.foreign + dropped.ahead > 0) {
      run_.incidents.DrawsIgnored(header, dropped.foreign, dropped.ahead);
    }
    if (header.tokens() < claimed_tokens) {
      run_.incidents.TokensCut(header.fragment(), header.round(),
                               {header.worker_id(), claimed_tokens, header.tokens()});
    }
    if (added->quarantined()) run_.incidents.Quarantined(header, *added);
  }
  RETURN_IF_ERROR(added.status());
  v1::PushResponse response = added->response;
  if (added->may_overflow) {
    Advance(*fragment);
    const auto held = fragment->BeginPush(header, nullptr);
    if (held.ok() && held->has_value()) response.set_quarantined((*held)->quarantined());
  }
  return response;
}

void RoundsImpl::MergeDue(int fragment) {
  const Run::Call call(run_);
  const absl::StatusOr<FragmentRounds*> found = run_.FindFragment(fragment);
  if (found.ok()) Advance(**found);
}

void RoundsImpl::PullAnswer(int fragment, int64_t round, PullCallback callback) {
  const absl::StatusOr<FragmentRounds*> found = run_.FindFragment(fragment);
  absl::Status serving = run_.Serving();
  if (serving.ok()) serving = found.status();
  if (!serving.ok()) {
    callback(serving);
    return;
  }
  absl::StatusOr<std::shared_ptr<const PullObject>> answer =
      (*found)->versions().AnswerOrWait(round, callback);
  if (!answer.ok() || *answer != nullptr) {
    callback(std::move(answer));
    return;
  }
  // It waits now; but if the end came in between, nobody else will call it back.
  serving = run_.Serving();
  if (serving.ok()) return;
  for (const PullCallback& waiter : (*found)->versions().TakeWaiters()) waiter(serving);
}

absl::StatusOr<std::shared_ptr<const PullObject>> RoundsImpl::PullState(int fragment) {
  RETURN_IF_ERROR(run_.Serving());
  ASSIGN_OR_RETURN(FragmentRounds* const found, run_.FindFragment(fragment));
  absl::StatusOr<std::shared_ptr<const PullObject>> state = found->State();
  if (!state.ok()) return FaultPasses(state.status());
  return state;
}

void RoundsImpl::RecordPulled(const std::string& worker_id, v1::Want::Object object,
                              int64_t bytes) {
  absl::MutexLock lock(&run_.mutex);
  v1::Member* const account = run_.membership.Account(worker_id);
  if (account == nullptr) return;  // An id that never joined is not kept an account of.
  if (object == v1::Want::ANSWER) {
    account->set_bytes_down(account->bytes_down() + bytes);
  } else {
    account->set_state_bytes_down(account->state_bytes_down() + bytes);
  }
}

void RoundsImpl::Advance(FragmentRounds& fragment) {
  while (run_.Serving().ok()) {
    std::map<std::string, Member> members;
    RoundPolicy policy;
    {
      absl::MutexLock lock(&run_.mutex);
      members = run_.membership.members();
      policy = run_.PolicyNow();
    }
    const absl::StatusOr<std::optional<PublishedRound>> round = fragment.Advance(members, policy);
    if (!round.ok()) {
      run_.Fail(round.status()).IgnoreError();
      return;
    }
    if (!round->has_value()) return;
    Announce(**round);
    fragment.Rest();
  }
}

void RoundsImpl::Announce(const PublishedRound& round) {
  const v1::Round& record = round.record;
  for (RunObserver* const observer : run_.options.observers) {
    observer->OnPublished(record, round.missing);
  }
  run_.incidents.Published(round);
  for (const PullCallback& waiter : round.waiters) waiter(round.answer);
  v1::CoordinatorMessage message;
  v1::RoundOutcome& outcome = *message.mutable_round_outcome();
  outcome.set_fragment(record.fragment());
  outcome.set_round(record.round());
  *outcome.mutable_contributors() = record.contributors();
  outcome.set_published_hash(record.published_hash());
  outcome.set_reason(record.reason());
  run_.Broadcast(message);
}

}  // namespace causeway::server
