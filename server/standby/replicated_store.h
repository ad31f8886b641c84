// The store of --durability=replicated: a fact is saved once copies have it, too.
//
// All that is told to workers follows a Save of this store, so here is the one place that a leader
// passes before it tells anything: it waits for copies, and is closed once it leads no more.
#ifndef CAUSEWAY_SERVER_STANDBY_REPLICATED_STORE_H_
#define CAUSEWAY_SERVER_STANDBY_REPLICATED_STORE_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/standby/standbys.h"
#include "server/store/run_directory_store.h"
#include "server/store/store.h"

namespace causeway::server {

// Thread-safe. An error of Standbys::Close is final, as every error of a Save.
class ReplicatedStore final : public Store {
 public:
  // Both outlive the store.
  ReplicatedStore(RunDirectoryStore& store, Standbys& standbys)
      : store_(store), standbys_(standbys) {}

  absl::StatusOr<std::optional<RecoveredRun>> Recover() override { return store_.Recover(); }
  // Nobody is told of these: what follows them waits for them, too.
  absl::Status BeginRun(const v1::RunIdentity& identity) override {
    return store_.BeginRun(identity);
  }
  absl::StatusOr<int64_t> TakeOver() override { return store_.TakeOver(); }
  absl::Status SaveSnapshot(const FragmentView& fragment) override {
    return store_.SaveSnapshot(fragment);
  }
  absl::Status DropSnapshot(int fragment, int64_t version) override {
    return store_.DropSnapshot(fragment, version);
  }
  absl::Status SaveSummary(const nlohmann::json& summary) override {
    return store_.SaveSummary(summary);
  }
  absl::Status ForgetAnswers(int fragment, int64_t before_round) override {
    return store_.ForgetAnswers(fragment, before_round);
  }

  absl::Status CheckRoom(uint64_t bytes) override { return store_.CheckRoom(bytes); }
  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override {
    const absl::Status saved = store_.SaveContribution(record, object);
    if (!saved.ok()) return saved;
    const absl::Status held = Held();
    return held.ok() ? held : absl::CancelledError(held.message());
  }
  absl::Status SaveRound(const v1::Round& record, std::span<const uint8_t> answer) override {
    return Replicated(store_.SaveRound(record, answer));
  }
  absl::Status SaveMembers(std::span<const v1::Member> members) override {
    return Replicated(store_.SaveMembers(members));
  }
  absl::Status SaveRunState(const v1::State& state) override {
    return Replicated(store_.SaveRunState(state));
  }

  absl::StatusOr<std::vector<uint8_t>> ReadContribution(int fragment, int64_t round,
                                                        const std::string& worker_id) override {
    return store_.ReadContribution(fragment, round, worker_id);
  }
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) override {
    return store_.ReadAnswer(fragment, round);
  }
  absl::StatusOr<FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) override {
    return store_.ReadSnapshot(fragment, version);
  }

 private:
  absl::Status Replicated(const absl::Status& saved) { return saved.ok() ? Held() : saved; }
  absl::Status Held() { return standbys_.WaitUntilHeld(store_.Position().commits()); }

  RunDirectoryStore& store_;
  Standbys& standbys_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STANDBY_REPLICATED_STORE_H_
