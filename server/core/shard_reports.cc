#include "server/core/shard_reports.h"

#include "absl/strings/str_cat.h"

namespace causeway::server {

absl::Status ShardReports::TakeStatus(const std::string& shard, const v1::FragmentStatus& status) {
  absl::MutexLock lock(&mutex_);
  v1::FragmentStatus& known = fragments_[status.fragment()];
  if (status.published_version() < known.published_version()) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard ", shard, " has version ", status.published_version(), " of fragment ",
                     status.fragment(), ", and has published ", known.published_version(),
                     ": it serves an old copy of its run directory; serve the newest one"));
  }
  known = status;
  return absl::OkStatus();
}

void ShardReports::TakeRound(const RoundRecord& round) {
  absl::MutexLock lock(&mutex_);
  v1::FragmentStatus& known = fragments_[round.fragment];
  if (known.published_version() >= round.round) return;
  known.set_fragment(round.fragment);
  known.set_values(plan_.range(round.fragment).size());
  known.set_published_version(round.round);
  known.set_published_hash(round.published_hash);
  known.clear_contributed();
  known.clear_quarantined();
}

void ShardReports::TakeAccounts(const std::string& shard, const v1::ShardAccounts& accounts) {
  absl::MutexLock lock(&mutex_);
  accounts_[shard] = accounts;
}

OpenRound ShardReports::open_round(int fragment) const {
  const v1::FragmentStatus known = status(fragment);
  OpenRound round;
  round.fragment = fragment;
  round.round = known.published_version() + 1;
  round.send_step = schedule_.SendStep(fragment, round.round);
  // When they came is the shard's matter.
  for (const std::string& id : known.contributed()) round.arrivals[id] = {};
  for (const std::string& id : known.quarantined()) round.quarantined[id] = {};
  return round;
}

v1::FragmentStatus ShardReports::status(int fragment) const {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = fragments_.find(fragment);
    if (known != fragments_.end()) return known->second;
  }
  v1::FragmentStatus status;
  status.set_fragment(fragment);
  status.set_values(plan_.range(fragment).size());
  return status;
}

void ShardReports::AddTo(const std::string& worker_id, WorkerAccount& account) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [shard, accounts] : accounts_) {
    for (const v1::ShardAccounts::Worker& worker : accounts.workers()) {
      if (worker.worker_id() != worker_id) continue;
      account.bytes_up += worker.bytes_up();
      account.bytes_down += worker.bytes_down();
      account.state_bytes_down += worker.state_bytes_down();
    }
  }
}

void ShardReports::AddTo(RunSummary& summary) const {
  for (auto& [id, account] : summary.workers) AddTo(id, account);
  absl::MutexLock lock(&mutex_);
  for (const auto& [fragment, status] : fragments_) summary.rounds += status.published_version();
  for (const auto& [shard, accounts] : accounts_) {
    summary.hash_checks += accounts.hash_checks();
    summary.hash_mismatches += accounts.hash_mismatches();
  }
}

}  // namespace causeway::server
