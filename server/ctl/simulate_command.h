// `causewayctl simulate` and `causewayctl plan`: links and schedules on paper, without a
// coordinator.
#ifndef CAUSEWAY_SERVER_CTL_SIMULATE_COMMAND_H_
#define CAUSEWAY_SERVER_CTL_SIMULATE_COMMAND_H_

#include <string>

#include "absl/status/statusor.h"

namespace causeway::server {

// Returns the text to print, as the flags ask. INVALID_ARGUMENT names the flag; UNAVAILABLE if no
// link is fast enough for what was asked.
absl::StatusOr<std::string> SimulateCommand(bool json);
absl::StatusOr<std::string> PlanCommand(bool json);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_SIMULATE_COMMAND_H_
