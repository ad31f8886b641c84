// The store of a simulated coordinator: what it keeps outlives the processes, and writing to it is
// when a process likes to die.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/auditor.h"
#include "tests/simulation/world.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::simulation {

class MortalStore final : public server::MemoryStore {
 public:
  // `on_death` is called when the process dies in the middle of a call; `on_disk_failure` when it
  // lives on, but no later call succeeds until the next process (FailWith).
  struct Options {
    World* world = nullptr;
    Auditor* auditor = nullptr;
    double death_rate = 0;  // Per write.
    std::function<void()> on_death;
    std::function<void()> on_disk_failure;
  };
  explicit MortalStore(Options options) : options_(std::move(options)) {}

  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveMembers(std::span<const v1::Member> members) override;

 private:
  absl::Status Write(absl::string_view call, absl::FunctionRef<void(Kept&)> change) override;
  void Holds(const v1::Contribution& record, std::span<const uint8_t> object) override {
    options_.auditor->Stored(record, object);
  }
  void Holds(const v1::Round& record, std::span<const uint8_t> answer) override {
    options_.auditor->RoundStored(record, answer);
  }
  bool Strikes() const {
    World& world = *options_.world;
    return failure().ok() && world.faulty() && world.Chance(options_.death_rate);
  }

  const Options options_;
};

}  // namespace causeway::simulation
