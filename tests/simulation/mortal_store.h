// The store of one simulated coordinator process: what it keeps outlives the process, and writing
// to it is when the process likes to die.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/store/store.h"
#include "tests/simulation/auditor.h"
#include "tests/simulation/world.h"

namespace causeway::simulation {

class MortalStore final : public server::Store {
 public:
  // `disk` outlives the process. `on_death` is called when the process dies in the middle of a
  // call; `on_disk_failure` when it lives on, but no later call succeeds.
  struct Options {
    server::Store* disk = nullptr;
    World* world = nullptr;
    Auditor* auditor = nullptr;
    double death_rate = 0;  // Per write.
    std::function<void()> on_death;
    std::function<void()> on_disk_failure;
  };
  explicit MortalStore(Options options) : options_(std::move(options)) {}

  // A write has failed: none succeeds any more.
  bool failed() const { return !failure_.ok(); }

  absl::StatusOr<std::optional<server::RecoveredRun>> Recover() override;
  absl::Status BeginRun(const v1::RunIdentity& identity) override;
  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveRound(const v1::Round& record, std::span<const uint8_t> answer) override;
  absl::Status SaveSnapshot(const server::FragmentView& fragment) override;
  absl::Status DropSnapshot(int fragment, int64_t version) override;
  absl::StatusOr<int64_t> TakeOver() override { return options_.disk->TakeOver(); }
  absl::Status SaveMembers(std::span<const v1::Member> members) override;
  absl::Status SaveRunState(const v1::State& state) override;
  absl::Status SaveSummary(const nlohmann::json& summary) override;
  absl::Status ForgetAnswers(int fragment, int64_t before_round) override;
  absl::StatusOr<std::vector<uint8_t>> ReadContribution(int fragment, int64_t round,
                                                        const std::string& worker_id) override;
  absl::StatusOr<std::vector<uint8_t>> ReadAnswer(int fragment, int64_t round) override;
  absl::StatusOr<server::FragmentSnapshot> ReadSnapshot(int fragment, int64_t version) override;

 private:
  absl::Status Write(const char* what, const std::function<absl::Status()>& write);

  const Options options_;
  absl::Status failure_;
};

}  // namespace causeway::simulation
