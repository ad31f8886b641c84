// Three honest sites, what they publish when nobody disturbs them, and the credentials of all.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
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

// A run without credentials, the three, and one who lies.
struct Stage {
  explicit Stage(Run::Options options = {}) : run(std::move(options)) {}
  // Starts the run and lets the three enter, then the liar, ready at that step. -1: it stays out.
  absl::Status Begin(int64_t liar_step = -1);

  Run run;
  // Once it has begun.
  std::optional<Team> team;
  std::optional<Site> liar;
};

// Certificates and tokens of a run under attack, and the files that the coordinator reads. Not
// thread-safe.
class Credentials {
 public:
  Credentials();

  // With what the coordinator is served: its certificate, the authority, and `change`.
  std::function<void(server::CoordinatorServer::Options&)> Server(
      std::function<void(server::CoordinatorServer::Options&)> change = {});
  // A worker's certificate that ends after so long; or its token, which goes on tokens().
  ChannelSecurity Certificate(const Run& run, const std::string& id,
                              absl::Duration life = absl::Hours(24));
  ChannelSecurity Token(const Run& run, const std::string& id);
  // The PEM text of the last certificate of that id.
  const std::string& certificate_of(const std::string& id) const { return issued_.at(id); }

  const TestAuthority& authority() const { return authority_; }
  const TestFolder& folder() const { return folder_; }
  // The coordinator's list of tokens, once there is one.
  std::string tokens() const { return folder_.path("tokens"); }

 private:
  const TestAuthority authority_;
  const TestFolder folder_;
  std::map<std::string, std::string> issued_;
  std::string token_list_ = "# of a run under attack\n";
  int sets_ = 0;
};

// Kills `run` and compares it with one that only the three have played, for so many rounds. OK if
// both published the same bits; else the error names the first round that differs.
absl::Status CompareWithAlone(Run& run, const ConfigChange& change, int64_t rounds);

}  // namespace causeway::hostile
