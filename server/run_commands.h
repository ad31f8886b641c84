// The coordinator's commands that look at a finished or stopped run.
#ifndef CAUSEWAY_SERVER_RUN_COMMANDS_H_
#define CAUSEWAY_SERVER_RUN_COMMANDS_H_

#include <string>

#include "absl/status/status.h"

namespace causeway::server {

// Prints what the folder holds, as lines or as JSON. A coordinator may own it meanwhile.
absl::Status InspectCommand(const std::string& run_dir, bool json);

struct ReplayFlags {
  std::string run_dir;
  std::string outer;    // A textproto of OuterConfig over the run's, or empty.
  std::string without;  // Worker ids with commas between them, or empty.
  std::string output;   // Where the parameters go, or empty.
};

// Merges all rounds of the folder again, checks their hashes and prints what came of it.
absl::Status ReplayCommand(const ReplayFlags& flags);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_RUN_COMMANDS_H_
