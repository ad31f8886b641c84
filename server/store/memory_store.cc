#include "server/store/memory_store.h"

namespace causeway::server {

absl::Status MemoryStore::BeginRun(const RunIdentity& identity) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) identity_ = identity;
  return failure_;
}

absl::Status MemoryStore::SaveContribution(const ContributionRecord& record,
                                           std::span<const uint8_t>) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) contributions_.push_back(record);
  return failure_;
}

absl::Status MemoryStore::SaveRound(const RoundRecord& record, std::span<const uint8_t>) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) rounds_.push_back(record);
  return failure_;
}

absl::Status MemoryStore::SaveSnapshot(std::span<const FragmentView> fragments) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  snapshot_.clear();
  for (const FragmentView& view : fragments) snapshot_.push_back(CopyFragment(view));
  return absl::OkStatus();
}

absl::Status MemoryStore::SaveSummary(const nlohmann::json& summary) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) summary_ = summary;
  return failure_;
}

RunIdentity MemoryStore::identity() const {
  absl::MutexLock lock(&mutex_);
  return identity_;
}

std::vector<ContributionRecord> MemoryStore::contributions() const {
  absl::MutexLock lock(&mutex_);
  return contributions_;
}

std::vector<RoundRecord> MemoryStore::rounds() const {
  absl::MutexLock lock(&mutex_);
  return rounds_;
}

std::vector<FragmentSnapshot> MemoryStore::snapshot() const {
  absl::MutexLock lock(&mutex_);
  return snapshot_;
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
