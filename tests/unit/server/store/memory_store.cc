#include "tests/unit/server/store/memory_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

absl::Status Absent(absl::string_view what, int fragment, int64_t number) {
  return absl::NotFoundError(
      absl::StrCat("the store does not keep ", what, " ", number, " of fragment ", fragment));
}

std::tuple<int, int64_t, std::string> KeyOf(const v1::Contribution& record) {
  const v1::PushHeader& header = record.header();
  return {header.fragment(), header.round(), header.worker_id()};
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
    return std::make_tuple(a.fragment(), a.round()) < std::make_tuple(b.fragment(), b.round());
  });
  run.contributions = contributions_;
  std::ranges::sort(run.contributions, {}, KeyOf);
  for (const auto& [key, snapshot] : snapshots_) {
    v1::Snapshot& record = run.snapshots.emplace_back();
    record.set_fragment(snapshot.fragment);
    record.set_version(snapshot.version);
    record.set_published_hash(snapshot.published_hash);
  }
  return run;
}

absl::Status MemoryStore::BeginRun(const v1::RunIdentity& identity) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) identity_ = identity;
  return failure_;
}

absl::Status MemoryStore::SaveContribution(const v1::Contribution& record,
                                           std::span<const uint8_t> object) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  contributions_.push_back(record);
  objects_[KeyOf(record)].assign(object.begin(), object.end());
  return absl::OkStatus();
}

absl::Status MemoryStore::SaveRound(const v1::Round& record, std::span<const uint8_t> answer) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  rounds_.push_back(record);
  answers_[{record.fragment(), record.round()}].assign(answer.begin(), answer.end());
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

absl::Status MemoryStore::SaveMembers(std::span<const v1::Member> members) {
  absl::MutexLock lock(&mutex_);
  for (const v1::Member& member : members) {
    if (failure_.ok()) members_[member.worker_id()] = member;
  }
  return failure_;
}

absl::Status MemoryStore::SaveRunState(const v1::State& state) {
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

v1::RunIdentity MemoryStore::identity() const {
  absl::MutexLock lock(&mutex_);
  return identity_.value_or(v1::RunIdentity());
}

std::vector<v1::Contribution> MemoryStore::contributions() const {
  absl::MutexLock lock(&mutex_);
  return contributions_;
}

std::vector<v1::Round> MemoryStore::rounds() const {
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
