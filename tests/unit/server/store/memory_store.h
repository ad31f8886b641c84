// Keeps everything that it is told, in memory, for tests and simulations. It outlives the
// coordinators that use it one after the other, as a disk does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
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
                                                        const std::string& worker_id) override {
    return Find(&Kept::objects, {fragment, round, worker_id});
  }
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) override {
    return Find(&Kept::answers, {fragment, round});
  }
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) override {
    return Find(&Kept::snapshots, {fragment, version});
  }

  v1::RunIdentity identity() const { return Copy(&Kept::identity).value_or(v1::RunIdentity()); }
  // In the order in which they were saved.
  std::vector<v1::Contribution> contributions() const { return Copy(&Kept::contributions); }
  std::vector<v1::Round> rounds() const { return Copy(&Kept::rounds); }
  // The newest one of every fragment that has one.
  std::vector<FragmentSnapshot> snapshots() const;
  nlohmann::json summary() const { return Copy(&Kept::summary); }

  // Every later call fails with this; OK ends it.
  void FailWith(absl::Status status);
  absl::Status failure() const;

 protected:
  struct Kept {
    std::optional<v1::RunIdentity> identity;
    v1::State state;
    std::map<std::string, v1::Member> members;
    std::vector<v1::Contribution> contributions;
    std::map<std::tuple<int, int64_t, std::string>, std::vector<uint8_t>> objects;
    std::vector<v1::Round> rounds;
    std::map<std::pair<int, int64_t>, std::vector<uint8_t>> answers;
    std::map<std::pair<int, int64_t>, FragmentSnapshot> snapshots;
    nlohmann::json summary;
  };
  // Makes the change that the call of that name asks for.
  virtual absl::Status Write(absl::string_view call, absl::FunctionRef<void(Kept&)> change);
  // It is kept from now on. Called with a lock held: do not call the store.
  virtual void Holds(const v1::Contribution& /*record*/, std::span<const uint8_t> /*object*/) {}
  virtual void Holds(const v1::Round& /*record*/, std::span<const uint8_t> /*answer*/) {}

 private:
  template <typename T>
  T Copy(T Kept::*part) const {
    absl::MutexLock lock(&mutex_);
    return kept_.*part;
  }
  template <typename Map>
  absl::StatusOr<typename Map::mapped_type> Find(Map Kept::*part,
                                                 const typename Map::key_type& key) const {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    const auto found = (kept_.*part).find(key);
    if (found == (kept_.*part).end()) return absl::NotFoundError("the store does not keep that");
    return found->second;
  }

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Kept kept_ ABSL_GUARDED_BY(mutex_);
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server
