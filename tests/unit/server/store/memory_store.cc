#include "tests/unit/server/store/memory_store.h"

namespace causeway::server {
namespace {

auto KeyOf(const v1::Contribution& record) {
  const v1::PushHeader& header = record.header();
  return std::make_tuple(header.fragment(), header.round(), header.worker_id());
}

auto KeyOf(const v1::Round& record) { return std::make_pair(record.fragment(), record.round()); }

FragmentSnapshot CopyOf(const FragmentView& view) {
  FragmentSnapshot copy;
  copy.fragment = view.fragment;
  copy.version = view.version;
  copy.published_hash = view.published_hash;
  copy.theta.assign(view.theta.begin(), view.theta.end());
  copy.published.assign(view.published.begin(), view.published.end());
  for (const auto& [name, values] : view.optimizer) {
    copy.optimizer.emplace_back(name, FloatBuffer(values.begin(), values.end()));
  }
  return copy;
}

}  // namespace

absl::StatusOr<std::optional<RecoveredRun>> MemoryStore::Recover() {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  if (!kept_.identity.has_value()) return std::nullopt;
  RecoveredRun run;
  run.identity = *kept_.identity;
  run.state = kept_.state;
  for (const auto& [id, member] : kept_.members) run.members.push_back(member);
  run.rounds = kept_.rounds;
  std::ranges::sort(run.rounds, {}, [](const auto& record) { return KeyOf(record); });
  run.contributions = kept_.contributions;
  std::ranges::sort(run.contributions, {}, [](const auto& record) { return KeyOf(record); });
  for (const auto& [key, snapshot] : kept_.snapshots) {
    v1::Snapshot& record = run.snapshots.emplace_back();
    record.set_fragment(snapshot.fragment);
    record.set_version(snapshot.version);
    record.set_published_hash(snapshot.published_hash);
  }
  return run;
}

absl::Status MemoryStore::Write(absl::string_view /*call*/, absl::FunctionRef<void(Kept&)> change) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) change(kept_);
  return failure_;
}

absl::Status MemoryStore::BeginRun(const v1::RunIdentity& identity) {
  return Write("BeginRun", [&](Kept& kept) { kept.identity = identity; });
}

absl::Status MemoryStore::SaveContribution(const v1::Contribution& record,
                                           std::span<const uint8_t> object) {
  return Write("SaveContribution", [&](Kept& kept) {
    kept.contributions.push_back(record);
    kept.objects[KeyOf(record)].assign(object.begin(), object.end());
    Holds(record, object);
  });
}

absl::Status MemoryStore::SaveRound(const v1::Round& record, std::span<const uint8_t> answer) {
  return Write("SaveRound", [&](Kept& kept) {
    kept.rounds.push_back(record);
    kept.answers[KeyOf(record)].assign(answer.begin(), answer.end());
    Holds(record, answer);
  });
}

absl::Status MemoryStore::SaveSnapshot(const FragmentView& fragment) {
  return Write("SaveSnapshot", [&](Kept& kept) {
    kept.snapshots[{fragment.fragment, fragment.version}] = CopyOf(fragment);
  });
}

absl::Status MemoryStore::DropSnapshot(int fragment, int64_t version) {
  return Write("DropSnapshot", [&](Kept& kept) { kept.snapshots.erase({fragment, version}); });
}

absl::StatusOr<int64_t> MemoryStore::TakeOver() {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  return ++epoch_;
}

absl::Status MemoryStore::SaveMembers(std::span<const v1::Member> members) {
  return Write("SaveMembers", [&](Kept& kept) {
    for (const v1::Member& member : members) kept.members[member.worker_id()] = member;
  });
}

absl::Status MemoryStore::SaveRunState(const v1::State& state) {
  return Write("SaveRunState", [&](Kept& kept) { kept.state = state; });
}

absl::Status MemoryStore::SaveSummary(const nlohmann::json& summary) {
  return Write("SaveSummary", [&](Kept& kept) { kept.summary = summary; });
}

absl::Status MemoryStore::ForgetAnswers(int fragment, int64_t before_round) {
  return Write("ForgetAnswers", [&](Kept& kept) {
    kept.answers.erase(kept.answers.lower_bound({fragment, 0}),
                       kept.answers.lower_bound({fragment, before_round}));
  });
}

std::vector<FragmentSnapshot> MemoryStore::snapshots() const {
  std::vector<FragmentSnapshot> newest;
  for (const auto& [key, snapshot] : Copy(&Kept::snapshots)) {
    if (!newest.empty() && newest.back().fragment == snapshot.fragment) newest.pop_back();
    newest.push_back(snapshot);
  }
  return newest;
}

void MemoryStore::FailWith(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  failure_ = std::move(status);
}

absl::Status MemoryStore::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace causeway::server
