#include "worker/run/launch_environment.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

constexpr int kMostProcesses = 65536;
constexpr int kMostPorts = 65535;

// The variable, from `least` to `most`.
absl::StatusOr<int> ReadNumber(const Environment& environment, absl::string_view name, int least,
                               int most, absl::string_view meaning) {
  const std::optional<std::string> text = environment(name);
  if (!text.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " (", meaning,
                     ") is not set, but RANK or WORLD_SIZE is: a site of several processes needs "
                     "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
                     "MASTER_PORT, as torchrun sets them; unset RANK and WORLD_SIZE for a process "
                     "by itself"));
  }
  int number = 0;
  if (absl::SimpleAtoi(*text, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(absl::StrCat(
      name, " (", meaning, ") is \"", *text, "\"; expected a number from ", least, " to ", most));
}

}  // namespace

std::optional<std::string> ProcessEnvironment(absl::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const Environment& environment) {
  LaunchEnvironment launch;
  if (!environment("RANK").has_value() && !environment("WORLD_SIZE").has_value()) return launch;
  ASSIGN_OR_RETURN(launch.processes, ReadNumber(environment, "WORLD_SIZE", 1, kMostProcesses,
                                                "the processes of the site"));
  ASSIGN_OR_RETURN(launch.process, ReadNumber(environment, "RANK", 0, launch.processes - 1,
                                              "this process among those of the site"));
  if (launch.processes == 1) return launch;
  ASSIGN_OR_RETURN(launch.local_processes,
                   ReadNumber(environment, "LOCAL_WORLD_SIZE", 1, launch.processes,
                              "the processes on this machine"));
  ASSIGN_OR_RETURN(launch.local_process,
                   ReadNumber(environment, "LOCAL_RANK", 0, launch.local_processes - 1,
                              "this process among those on this machine"));
  ASSIGN_OR_RETURN(launch.master_port, ReadNumber(environment, "MASTER_PORT", 1, kMostPorts - 1,
                                                  "the port of process 0"));
  const std::optional<std::string> address = environment("MASTER_ADDR");
  if (!address.has_value() || address->empty()) {
    return absl::InvalidArgumentError(
        "MASTER_ADDR is not set: it is the name or address of the machine with process 0 (RANK 0)");
  }
  launch.master_address = *address;
  if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True") ++launch.master_port;
  return launch;
}

absl::StatusOr<std::vector<int>> DevicesOfProcess(const LaunchEnvironment& launch,
                                                  const std::vector<int>& visible) {
  const auto processes = static_cast<size_t>(launch.local_processes);
  if (visible.size() < processes) return visible;
  if (visible.size() % processes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(visible.size(), " GPUs cannot be shared out equally to the ", processes,
                     " processes of this machine (LOCAL_WORLD_SIZE): start as many processes as "
                     "there are GPUs, or one"));
  }
  const size_t each = visible.size() / processes;
  const auto first = visible.begin() + static_cast<std::ptrdiff_t>(each) * launch.local_process;
  return std::vector<int>(first, first + static_cast<std::ptrdiff_t>(each));
}

}  // namespace causeway::worker
