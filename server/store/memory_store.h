// Keeps everything that it is told, in memory, for tests and simulations. It outlives the
// coordinators that use it one after the other, as a disk does.
#ifndef CAUSEWAY_SERVER_STORE_MEMORY_STORE_H_
#define CAUSEWAY_SERVER_STORE_MEMORY_STORE_H_

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/store/store.h"

namespace causeway::server {

// Thread-safe. The accessors copy.
class MemoryStore : public Store {
 public:
  absl::StatusOr<std::optional<RecoveredRun>> Recover() override;
  absl::Status BeginRun(const RunIdentity& identity) override;
  absl::Status SaveContribution(const ContributionRecord& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveRound(const RoundRecord& record, std::span<const uint8_t> answer) override;
  absl::Status SaveSnapshot(const FragmentView& fragment) override;
  absl::Status DropSnapshot(int fragment, int64_t version) override;
  absl::StatusOr<int64_t> TakeOver() override;
  absl::Status SaveMember(const MemberRecord& member) override;
  absl::Status SaveRunState(const RunState& state) override;
  absl::Status SaveSummary(const nlohmann::json& summary) override;
  absl::Status ForgetAnswers(int fragment, int64_t before_round) override;
  absl::StatusOr<std::vector<uint8_t>> ReadContribution(int fragment, int64_t round,
                                                        const std::string& worker_id) override;
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) override;
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) override;

  RunIdentity identity() const;
  // In the order in which they were saved.
  std::vector<ContributionRecord> contributions() const;
  std::vector<RoundRecord> rounds() const;
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
  std::optional<RunIdentity> identity_ ABSL_GUARDED_BY(mutex_);
  RunState state_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, MemberRecord> members_ ABSL_GUARDED_BY(mutex_);
  std::vector<ContributionRecord> contributions_ ABSL_GUARDED_BY(mutex_);
  std::map<ContributionKey, std::vector<uint8_t>> objects_ ABSL_GUARDED_BY(mutex_);
  std::vector<RoundRecord> rounds_ ABSL_GUARDED_BY(mutex_);
  std::map<RoundKey, std::vector<uint8_t>> answers_ ABSL_GUARDED_BY(mutex_);
  std::map<RoundKey, FragmentSnapshot> snapshots_ ABSL_GUARDED_BY(mutex_);
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  nlohmann::json summary_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_MEMORY_STORE_H_
