// Three honest sites, and what they publish when nobody disturbs them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/security/hostile_client/run.h"
#include "tests/security/hostile_client/site.h"

namespace causeway::hostile {

class Team {
 public:
  // "honest-1" and so on, with what `security` gives each of them (empty: plaintext).
  explicit Team(Run& run, const std::function<ChannelSecurity(const std::string&)>& security = {});

  absl::Status Enter();
  // Every site pushes, then every site merges the answer and says so in a heartbeat.
  absl::Status DoRound(int64_t round);
  absl::Status Push(int64_t round);
  absl::Status Merge(int64_t round);
  // New channels and sessions, as after a death of the coordinator.
  absl::Status Return();

  Site& site(int index) { return *sites_[static_cast<size_t>(index)]; }

 private:
  Run& run_;
  const std::function<ChannelSecurity(const std::string&)> security_;
  std::vector<std::unique_ptr<Site>> sites_;
};

// Kills `run` and compares it with one that only the three have played, for so many rounds. OK if
// both published the same bits; else the error names the first round that differs.
absl::Status CompareWithAlone(Run& run, const ConfigChange& change, int64_t rounds);

}  // namespace causeway::hostile
