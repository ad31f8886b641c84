// Which of a site's processes this is, as torchrun says it in the environment, or a Slurm script
// that exports the same names (docs/gpu.md has one):
//
//   RANK, WORLD_SIZE              this process among all of the site, and how many there are
//   LOCAL_RANK, LOCAL_WORLD_SIZE  the same among those of this machine
//   MASTER_ADDR, MASTER_PORT      where process 0 can be reached
//
// Without RANK and WORLD_SIZE the process is the only one.
#ifndef CAUSEWAY_WORKER_RUN_LAUNCH_ENVIRONMENT_H_
#define CAUSEWAY_WORKER_RUN_LAUNCH_ENVIRONMENT_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway::worker {

struct LaunchEnvironment {
  int process = 0;
  int processes = 1;
  int local_process = 0;
  int local_processes = 1;
  std::string master_address;  // Empty if there is one process.
  int master_port = 0;
};

// Returns the environment's value of a name; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(absl::string_view name)>;
std::optional<std::string> ProcessEnvironment(absl::string_view name);

// INVALID_ARGUMENT names the variable that is missing or wrong, and what it should be. Where
// torchrun's own store listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), `master_port` is the
// one after it.
absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const Environment& environment);

// Which of the GPUs that the process sees are its own: an equal share of them if it sees enough for
// all processes of the machine, all of them if its launcher shows it fewer. INVALID_ARGUMENT if
// they cannot be shared out.
absl::StatusOr<std::vector<int>> DevicesOfProcess(const LaunchEnvironment& launch,
                                                  const std::vector<int>& visible);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_RUN_LAUNCH_ENVIRONMENT_H_
