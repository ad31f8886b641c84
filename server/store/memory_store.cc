#include "server/store/memory_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

absl::Status Absent(absl::string_view what, int fragment, int64_t number) {
  return absl::NotFoundError(
      absl::StrCat("the store does not keep ", what, " ", number, " of fragment ", fragment));
}

}  // namespace

absl::StatusOr<std::optional<RecoveredRun>> MemoryStore::Recover() {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  if (!identity_.has_value()) return std::nullopt;
  RecoveredRun run;
  run.identity = *identity_;
  run.state = state_;
  for (const auto& [id, member] : members_) run.members.push_back(member);
  run.rounds = rounds_;
  std::sort(run.rounds.begin(), run.rounds.end(), [](const auto& a, const auto& b) {
    return std::tie(a.fragment, a.round) < std::tie(b.fragment, b.round);
  });
  run.contributions = contributions_;
  std::sort(run.contributions.begin(), run.contributions.end(), [](const auto& a, const auto& b) {
    return std::tie(a.fragment, a.round, a.worker_id) < std::tie(b.fragment, b.round, b.worker_id);
  });
  for (const auto& [key, snapshot] : snapshots_) {
    run.snapshots.push_back({snapshot.fragment, snapshot.version});
  }
  return run;
}

absl::Status MemoryStore::BeginRun(const RunIdentity& identity) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) identity_ = identity;
  return failure_;
}

absl::Status MemoryStore::SaveContribution(const ContributionRecord& record,
                                           std::span<const uint8_t> object) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  contributions_.push_back(record);
  objects_[{record.fragment, record.round, record.worker_id}].assign(object.begin(), object.end());
  return absl::OkStatus();
}

absl::Status MemoryStore::SaveRound(const RoundRecord& record, std::span<const uint8_t> answer) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  rounds_.push_back(record);
  answers_[{record.fragment, record.round}].assign(answer.begin(), answer.end());
  return absl::OkStatus();
}

absl::Status MemoryStore::SaveSnapshot(const FragmentView& fragment) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  snapshots_[{fragment.fragment, fragment.version}] = CopyFragment(fragment);
  return absl::OkStatus();
}

absl::Status MemoryStore::DropSnapshot(int fragment, int64_t version) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) snapshots_.erase({fragment, version});
  return failure_;
}

absl::StatusOr<int64_t> MemoryStore::TakeOver() {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  return ++epoch_;
}

absl::Status MemoryStore::SaveMember(const MemberRecord& member) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) members_[member.member.id] = member;
  return failure_;
}

absl::Status MemoryStore::SaveRunState(const RunState& state) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) state_ = state;
  return failure_;
}

absl::Status MemoryStore::SaveSummary(const nlohmann::json& summary) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) summary_ = summary;
  return failure_;
}

absl::Status MemoryStore::ForgetAnswers(int fragment, int64_t before_round) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  answers_.erase(answers_.lower_bound({fragment, 0}),
                 answers_.lower_bound({fragment, before_round}));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> MemoryStore::ReadContribution(int fragment, int64_t round,
                                                                   const std::string& worker_id) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  const auto found = objects_.find({fragment, round, worker_id});
  if (found == objects_.end()) {
    return Absent(absl::StrCat("the delta of ", worker_id, " to round"), fragment, round);
  }
  return found->second;
}

absl::StatusOr<std::vector<uint8_t>> MemoryStore::ReadAnswer(int fragment, int64_t round) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  const auto found = answers_.find({fragment, round});
  if (found == answers_.end()) return Absent("the answer of round", fragment, round);
  return found->second;
}

absl::StatusOr<FragmentSnapshot> MemoryStore::ReadSnapshot(int fragment, int64_t version) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  const auto found = snapshots_.find({fragment, version});
  if (found == snapshots_.end()) return Absent("the snapshot of version", fragment, version);
  return found->second;
}

RunIdentity MemoryStore::identity() const {
  absl::MutexLock lock(&mutex_);
  return identity_.value_or(RunIdentity());
}

std::vector<ContributionRecord> MemoryStore::contributions() const {
  absl::MutexLock lock(&mutex_);
  return contributions_;
}

std::vector<RoundRecord> MemoryStore::rounds() const {
  absl::MutexLock lock(&mutex_);
  return rounds_;
}

std::vector<FragmentSnapshot> MemoryStore::snapshots() const {
  absl::MutexLock lock(&mutex_);
  std::vector<FragmentSnapshot> newest;
  for (const auto& [key, snapshot] : snapshots_) {
    if (!newest.empty() && newest.back().fragment == snapshot.fragment) newest.pop_back();
    newest.push_back(snapshot);
  }
  return newest;
}

nlohmann::json MemoryStore::summary() const {
  absl::MutexLock lock(&mutex_);
  return summary_;
}

void MemoryStore::FailWith(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  failure_ = std::move(status);
}

}  // namespace causeway::server
