// CoordinatorImpl as the lead of shards, and as a shard.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/params/draws.h"
#include "server/core/coordinator_impl.h"

namespace causeway::server {
namespace {

absl::StatusOr<MemberState> StateFromProto(v1::WorkerStatus::State state) {
  switch (state) {
    case v1::WorkerStatus::JOINING:
      return MemberState::kJoining;
    case v1::WorkerStatus::ACTIVE:
      return MemberState::kActive;
    case v1::WorkerStatus::LOST:
      return MemberState::kLost;
    case v1::WorkerStatus::LEFT:
      return MemberState::kLeft;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a member's state is ", static_cast<int>(state),
                       ", which this release does not know: use the same for the lead and shards"));
  }
}

RoundRecord RecordOf(const v1::ShardRound& round) {
  RoundRecord record;
  record.fragment = round.fragment();
  record.round = round.round();
  record.contributors = {round.contributors().begin(), round.contributors().end()};
  record.weights = {round.weights().begin(), round.weights().end()};
  record.send_step = round.send_step();
  record.first_unix_s = round.first_unix_s();
  record.closed_unix_s = round.closed_unix_s();
  record.published_unix_s = round.published_unix_s();
  record.bytes_in = round.bytes_in();
  record.bytes_out = round.bytes_out();
  record.published_hash = round.published_hash();
  record.answer_hash = round.answer_hash();
  record.reason = round.reason();
  return record;
}

absl::Status NoShards() {
  return absl::FailedPreconditionError("this coordinator has all fragments: there is no lead");
}

}  // namespace

v1::WorkerStatus::State StateToProto(MemberState state) {
  switch (state) {
    case MemberState::kJoining:
      return v1::WorkerStatus::JOINING;
    case MemberState::kActive:
      return v1::WorkerStatus::ACTIVE;
    case MemberState::kLost:
      return v1::WorkerStatus::LOST;
    case MemberState::kLeft:
      return v1::WorkerStatus::LEFT;
  }
  return v1::WorkerStatus::STATE_UNSPECIFIED;
}

v1::ShardReport RoundReport(const RoundRecord& record, const std::vector<std::string>& missing) {
  v1::ShardReport report;
  v1::ShardRound& round = *report.mutable_round();
  round.set_fragment(record.fragment);
  round.set_round(record.round);
  for (const std::string& id : record.contributors) round.add_contributors(id);
  for (const double weight : record.weights) round.add_weights(weight);
  round.set_send_step(record.send_step);
  round.set_first_unix_s(record.first_unix_s);
  round.set_closed_unix_s(record.closed_unix_s);
  round.set_published_unix_s(record.published_unix_s);
  round.set_bytes_in(record.bytes_in);
  round.set_bytes_out(record.bytes_out);
  round.set_published_hash(record.published_hash);
  round.set_answer_hash(record.answer_hash);
  round.set_reason(record.reason);
  for (const std::string& id : missing) round.add_missing(id);
  return report;
}

absl::Status Coordinator::TakeReport(const std::string&, const v1::ShardReport&) {
  return absl::OkStatus();
}
v1::ShardRoster Coordinator::Roster() { return {}; }
void Coordinator::AnnouncePlacement() {}
absl::Status Coordinator::FollowLead(const v1::ShardRoster&) { return NoShards(); }
void Coordinator::LoseLead() {}
absl::Status Coordinator::AnswerLead(const v1::ShardCall&) { return NoShards(); }
v1::ShardAccounts Coordinator::Accounts() const { return {}; }
std::vector<v1::ShardContribution> Coordinator::PastDraws() const { return {}; }

v1::ShardRoster CoordinatorImpl::Roster() {
  const bool rounds_are_done = RoundsAreDone();
  v1::ShardRoster roster;
  absl::MutexLock lock(&members_mutex_);
  roster.set_number(++roster_number_);
  roster.set_epoch(epoch_);
  roster.set_started(state_.started);
  roster.set_started_unix_s(state_.started_unix_s);
  roster.set_stop_step(state_.stop_step);
  roster.set_finished(FinishedLocked(rounds_are_done));
  roster.set_reached_end(ReachedItsEndLocked(rounds_are_done));
  for (const auto& [id, member] : membership_.members()) {
    v1::ShardMember& entry = *roster.add_members();
    entry.set_worker_id(id);
    entry.set_state(StateToProto(member.state));
    entry.set_incarnation(member.incarnation);
    entry.set_data_slot(member.data_slot);
    for (const int slot : member.had_slots) entry.add_had_slots(slot);
    entry.set_own_data(member.own_data);
    entry.set_sites(member.sites);
    entry.set_rejected(member.rejected);
    entry.set_was_ready(member.was_ready);
    entry.set_active_from_step(member.active_from_step);
    entry.set_step(member.step);
    *entry.mutable_heartbeat() = accounts_[id].heartbeat;
  }
  told_at_ = options_.clock->Monotonic();
  return roster;
}

void CoordinatorImpl::TellShards(bool wait) {
  if (is_lead()) options_.part->shards->Tell(Roster(), wait);
}

absl::Status CoordinatorImpl::TakeReport(const std::string& shard, const v1::ShardReport& report) {
  const auto is_remote = [this](int fragment) {
    return fragment >= 0 && fragment < plan_.fragments() && Own(fragment) == nullptr;
  };
  switch (report.report_case()) {
    case v1::ShardReport::kFragment:
      if (!is_remote(report.fragment().fragment())) return absl::OkStatus();
      return shard_reports_.TakeStatus(shard, report.fragment());
    case v1::ShardReport::kContribution: {
      const v1::PushHeader& header = report.contribution().header();
      const absl::StatusOr<Draws> draws =
          DrawsFromProto(header.draws(), options_.config.membership().max_workers());
      if (draws.ok()) {
        absl::MutexLock lock(&members_mutex_);
        draws_.Add(header.worker_id(), *draws,
                   report.contribution().past() || !is_remote(header.fragment())
                       ? header.send_step()
                       : schedule_.SendStep(header.fragment(), header.round()));
      }
      if (report.contribution().past()) return absl::OkStatus();
      for (RunObserver* const observer : options_.observers) {
        observer->OnContributed(header, report.contribution().quarantined());
      }
      return absl::OkStatus();
    }
    case v1::ShardReport::kRound: {
      if (!is_remote(report.round().fragment())) return absl::OkStatus();
      PublishedRound round;
      round.record = RecordOf(report.round());
      round.missing = {report.round().missing().begin(), report.round().missing().end()};
      shard_reports_.TakeRound(round.record);
      for (RunObserver* const observer : options_.observers) {
        observer->OnPublished(round.record, round.missing);
      }
      BroadcastOutcome(round.record);
      return absl::OkStatus();
    }
    case v1::ShardReport::kAccounts:
      shard_reports_.TakeAccounts(shard, report.accounts());
      return absl::OkStatus();
    case v1::ShardReport::kEvent: {
      nlohmann::json fields =
          nlohmann::json::parse(report.event().fields_json(), nullptr, /*allow_exceptions=*/false);
      if (!fields.is_object()) fields = nlohmann::json::object();
      fields["shard"] = shard;
      options_.events->Record(report.event().event(),
                              absl::StrCat("shard ", shard, ": ", report.event().message()),
                              fields);
      return absl::OkStatus();
    }
    default:
      return absl::OkStatus();
  }
}

void CoordinatorImpl::AnnouncePlacement() {
  v1::CoordinatorMessage message;
  for (v1::Shard& shard : options_.part->shards->Where()) {
    *message.mutable_placement()->add_shards() = std::move(shard);
  }
  Broadcast(message);
}

void CoordinatorImpl::ForwardApplied(const std::string& worker_id, uint64_t incarnation,
                                     const v1::Applied& applied) {
  v1::ShardCall call;
  call.mutable_applied()->set_worker_id(worker_id);
  *call.mutable_applied()->mutable_applied() = applied;
  options_.part->shards->Call(applied.fragment(), std::move(call),
                              [this, worker_id, incarnation, applied](const absl::Status& same) {
                                if (same.ok()) {
                                  for (RunObserver* const observer : options_.observers) {
                                    observer->OnApplied(worker_id, applied.fragment(),
                                                        applied.round());
                                  }
                                }
                                if (!absl::IsDataLoss(same) && !absl::IsOutOfRange(same)) return;
                                const auto sink = Expel(worker_id, incarnation);
                                if (sink.ok() && *sink != nullptr) (*sink)->Close(same);
                              });
}

absl::Status CoordinatorImpl::RejectAtShards(const v1::RejectRequest& order) {
  struct Answers {
    absl::Mutex mutex;
    int missing ABSL_GUARDED_BY(mutex) = 0;
    absl::Status first ABSL_GUARDED_BY(mutex);
  };
  const auto answers = std::make_shared<Answers>();
  std::vector<int> fragments = {order.fragment()};
  if (order.round() == 0) {
    fragments.clear();  // Any fragment of each shard stands for it.
    for (const v1::Shard& shard : options_.part->shards->Where()) {
      if (shard.fragments_size() > 0) fragments.push_back(shard.fragments(0));
    }
  }
  {
    absl::MutexLock lock(&answers->mutex);
    answers->missing = static_cast<int>(fragments.size());
  }
  for (const int fragment : fragments) {
    v1::ShardCall call;
    *call.mutable_reject() = order;
    options_.part->shards->Call(fragment, std::move(call), [answers](const absl::Status& status) {
      absl::MutexLock lock(&answers->mutex);
      --answers->missing;
      answers->first.Update(status);
    });
  }
  absl::MutexLock lock(&answers->mutex);
  answers->mutex.Await(absl::Condition(
      +[](int* missing) { return *missing == 0; }, &answers->missing));
  return answers->first;
}

bool CoordinatorImpl::HearsLead() const {
  absl::MutexLock lock(&members_mutex_);
  return !is_shard() ||
         (hears_lead_ && options_.clock->Monotonic() - heard_lead_at_ < kLeadSilence);
}

absl::Status CoordinatorImpl::CheckLead() const {
  if (HearsLead()) return absl::OkStatus();
  // Another process may have been given the fragments by now.
  return absl::UnavailableError("this shard does not hear its lead: it takes no deltas until then");
}

void CoordinatorImpl::LoseLead() {
  absl::MutexLock lock(&members_mutex_);
  hears_lead_ = false;
}

absl::Status CoordinatorImpl::FollowLead(const v1::ShardRoster& roster) {
  if (roster.epoch() < epoch_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the lead has epoch ", roster.epoch(), ", this shard has followed one of ", epoch_.load(),
        ": the lead serves an old copy of its run directory; serve the newest one"));
  }
  {
    absl::MutexLock lock(&members_mutex_);
    // Every process that serves a lead's folder has an epoch of its own.
    if (lead_.has_value() && roster.epoch() == lead_->epoch() &&
        roster.process_nonce() != lead_->process_nonce()) {
      return absl::FailedPreconditionError(
          absl::StrCat("two processes lead this run under epoch ", roster.epoch(),
                       ", with copies of one run directory: stop the one that is not the newest"));
    }
  }
  std::vector<Member> members;
  for (const v1::ShardMember& entry : roster.members()) {
    Member member;
    member.id = entry.worker_id();
    ASSIGN_OR_RETURN(member.state, StateFromProto(entry.state()));
    member.incarnation = entry.incarnation();
    member.data_slot = entry.data_slot();
    member.had_slots = {entry.had_slots().begin(), entry.had_slots().end()};
    member.own_data = entry.own_data();
    member.sites = std::max(0, entry.sites());
    member.rejected = entry.rejected();
    member.was_ready = entry.was_ready();
    member.active_from_step = entry.active_from_step();
    member.step = entry.step();
    member.progress = ProgressOf(entry.heartbeat());
    members.push_back(std::move(member));
  }
  absl::MutexLock lock(&members_mutex_);
  const absl::Duration now = options_.clock->Monotonic();
  for (size_t i = 0; i < members.size(); ++i) {
    Member& member = members[i];
    const Member* const before = membership_.Find(member.id);
    const bool begins = member.was_ready && (before == nullptr || !before->was_ready ||
                                             member.active_from_step > before->active_from_step);
    if (begins) tokens_.Begin(member.id, member.active_from_step, member.workers());
    for (const int slot : member.had_slots) {
      if (begins || before == nullptr || !before->had_slots.contains(slot)) {
        draws_.Give(slot, member.active_from_step);
      }
    }
    v1::Heartbeat& heartbeat = accounts_[member.id].heartbeat;
    const v1::Heartbeat& said = roster.members(static_cast<int>(i)).heartbeat();
    // When it was reported counts: only a new word renews it.
    const bool is_news = before == nullptr || heartbeat.step() != said.step() ||
                         heartbeat.compute_seconds() != said.compute_seconds();
    member.progress.reported_at = is_news ? now : before->progress.reported_at;
    heartbeat = said;
    membership_.Mirror(std::move(member));
  }
  state_.started = roster.started();
  state_.started_unix_s = roster.started_unix_s();
  state_.stop_step = roster.stop_step();
  epoch_ = roster.epoch();
  lead_ = roster;
  lead_->clear_members();
  hears_lead_ = true;
  heard_lead_at_ = now;
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::AnswerLead(const v1::ShardCall& call) {
  RETURN_IF_ERROR(Serving());
  switch (call.call_case()) {
    case v1::ShardCall::kApplied:
      return CompareApplied(call.applied().worker_id(), call.applied().applied());
    case v1::ShardCall::kReject:
      return Reject(call.reject());
    default:
      return absl::UnimplementedError(
          "the lead asks what this shard's release does not know: use the same for both");
  }
}

v1::ShardAccounts CoordinatorImpl::Accounts() const {
  v1::ShardAccounts totals;
  totals.set_hash_checks(hash_checks_.load());
  totals.set_hash_mismatches(hash_mismatches_.load());
  absl::MutexLock lock(&members_mutex_);
  for (const auto& [id, account] : accounts_) {
    v1::ShardAccounts::Worker& worker = *totals.add_workers();
    worker.set_worker_id(id);
    worker.set_bytes_up(account.bytes_up);
    worker.set_bytes_down(account.bytes_down);
    worker.set_state_bytes_down(account.state_bytes_down);
  }
  return totals;
}

std::vector<v1::ShardContribution> CoordinatorImpl::PastDraws() const {
  int64_t step = 0;
  for (const auto& fragment : fragments_) {
    const int64_t version = fragment->version();
    if (version > 0) step = std::max(step, schedule_.SendStep(fragment->fragment(), version));
  }
  std::vector<v1::ShardContribution> past;
  absl::MutexLock lock(&members_mutex_);
  for (const auto& [id, member] : membership_.members()) {
    v1::ShardContribution entry;
    entry.set_past(true);
    entry.mutable_header()->set_worker_id(id);
    entry.mutable_header()->set_send_step(step);
    std::set<int> slots = member.had_slots;
    if (member.own_data) slots = {kOwnData};
    Draws draws;
    for (const int slot : slots) {
      const int64_t next = draws_.NextDraw(slot, id);
      if (next > 0) draws.push_back({slot, next - 1, next});
    }
    if (draws.empty() || draws.size() > kMaxDrawRanges) continue;
    DrawsToProto(draws, entry.mutable_header()->mutable_draws());
    past.push_back(std::move(entry));
  }
  return past;
}

}  // namespace causeway::server
