// Keeps everything that it is told, in memory, for tests and simulations. It outlives the
// coordinators that use it one after the other, as a disk does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "server/store/store.h"

namespace causeway::server {

// Thread-safe. The accessors copy.
class MemoryStore : public Store {
 public:
  absl::StatusOr<std::optional<RecoveredRun>> Recover() override;
  absl::Status BeginRun(const v1::RunIdentity& identity) override;
  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveRound(const v1::Round& record, std::span<const uint8_t> answer) override;
  absl::Status SaveSnapshot(const FragmentView& fragment) override;
  absl::Status DropSnapshot(int fragment, int64_t version) override;
  absl::StatusOr<int64_t> TakeOver() override;
  absl::Status SaveMembers(std::span<const v1::Member> members) override;
  absl::Status SaveRunState(const v1::State& state) override;
  absl::Status SaveSummary(const nlohmann::json& summary) override;
  absl::Status ForgetAnswers(int fragment, int64_t before_round) override;
  absl::StatusOr<std::vector<uint8_t>> ReadContribution(int fragment, int64_t round,
                                                        const std::string& worker_id) override;
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) override;
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) override;

  v1::RunIdentity identity() const;
  // In the order in which they were saved.
  std::vector<v1::Contribution> contributions() const;
  std::vector<v1::Round> rounds() const;
  // The newest one of every fragment that has one.
  std::vector<FragmentSnapshot> snapshots() const;
  nlohmann::json summary() const;

  // Every later call fails with this; OK ends it.
  void FailWith(absl::Status status);

 private:
  using RoundKey = std::pair<int, int64_t>;                       // Fragment, round.
  using ContributionKey = std::tuple<int, int64_t, std::string>;  // And worker id.

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::RunIdentity> identity_ ABSL_GUARDED_BY(mutex_);
  v1::State state_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::Member> members_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Contribution> contributions_ ABSL_GUARDED_BY(mutex_);
  std::map<ContributionKey, std::vector<uint8_t>> objects_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Round> rounds_ ABSL_GUARDED_BY(mutex_);
  std::map<RoundKey, std::vector<uint8_t>> answers_ ABSL_GUARDED_BY(mutex_);
  std::map<RoundKey, FragmentSnapshot> snapshots_ ABSL_GUARDED_BY(mutex_);
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  nlohmann::json summary_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
