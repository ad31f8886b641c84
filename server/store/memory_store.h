// Keeps everything that it is told, in memory, for tests and simulations.
#ifndef CAUSEWAY_SERVER_STORE_MEMORY_STORE_H_
#define CAUSEWAY_SERVER_STORE_MEMORY_STORE_H_

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/store/checkpoint_file.h"
#include "server/store/store.h"

namespace causeway::server {

// Thread-safe. The accessors copy.
class MemoryStore final : public Store {
 public:
  absl::Status BeginRun(const RunIdentity& identity) override;
  absl::Status SaveContribution(const ContributionRecord& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveRound(const RoundRecord& record, std::span<const uint8_t> answer) override;
  absl::Status SaveSnapshot(std::span<const FragmentView> fragments) override;
  absl::Status SaveSummary(const nlohmann::json& summary) override;

  RunIdentity identity() const;
  std::vector<ContributionRecord> contributions() const;
  std::vector<RoundRecord> rounds() const;
  std::vector<FragmentSnapshot> snapshot() const;
  nlohmann::json summary() const;

  // Every later call fails with this; OK ends it.
  void FailWith(absl::Status status);

 private:
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  RunIdentity identity_ ABSL_GUARDED_BY(mutex_);
  std::vector<ContributionRecord> contributions_ ABSL_GUARDED_BY(mutex_);
  std::vector<RoundRecord> rounds_ ABSL_GUARDED_BY(mutex_);
  std::vector<FragmentSnapshot> snapshot_ ABSL_GUARDED_BY(mutex_);
  nlohmann::json summary_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_MEMORY_STORE_H_
