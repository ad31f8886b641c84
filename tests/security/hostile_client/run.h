// A run to be attacked: a coordinator with a run directory behind its server, and sites that speak
// the protocol to it over loopback. Sites do not train: what they send follows from their name, the
// round and what was published before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/rpc/security.h"
#include "server/core/coordinator.h"
#include "server/service/coordinator_server.h"
#include "server/store/run_directory_store.h"
#include "tests/unit/common/rpc/test_authority.h"
#include "tests/unit/common/telemetry/awaited_events.h"

namespace causeway::hostile {

using ConfigChange = std::function<void(v1::RunConfig&)>;

// Three honest sites to start, one fragment, H = 5, FP32 both ways.
inline constexpr int kHonest = 3;
inline constexpr int64_t kInterval = 5;

class Run {
 public:
  struct Options {
    ConfigChange change = {};
    std::string folder = {};  // The run directory; empty: one of its own.
    // Applied to the server's.
    std::function<void(server::CoordinatorServer::Options&)> server = {};
    int snapshot_every_rounds = 1000;
    Clock* clock = Clock::Real();  // The coordinator's. Outlives the run.
  };
  explicit Run(Options options);
  ~Run();

  // Opens the run directory and serves it: begins the run, or goes on with it.
  absl::Status Start();
  // As by SIGKILL, but for what the store's destructor does.
  void Kill();
  // Saves a snapshot where one is due; the server's own thread does so too rarely.
  void Maintain() { coordinator_->Maintain(); }

  server::Coordinator& coordinator() { return *coordinator_; }
  AwaitedEvents& record() { return record_; }
  const v1::RunConfig& config() const { return config_; }
  const std::string& folder() const { return folder_; }
  std::string address() const;
  // All rounds that are durable, in order; the coordinator must be dead.
  absl::StatusOr<std::vector<v1::Round>> Rounds() const;

 private:
  const Options options_;
  const TestFolder own_folder_;
  const std::string folder_;
  v1::RunConfig config_;
  AwaitedEvents record_;
  std::unique_ptr<server::RunDirectoryStore> store_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<server::CoordinatorServer> server_;
};

}  // namespace causeway::hostile
