// `causewayctl events`: what happened in a run.
#ifndef CAUSEWAY_SERVER_CTL_EVENTS_COMMAND_H_
#define CAUSEWAY_SERVER_CTL_EVENTS_COMMAND_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/ctl/run_admin.h"

namespace causeway::server {

// Refuses what the flags ask for: INVALID_ARGUMENT.
absl::Status CheckEventsFlags();

struct EventsOptions {
  bool json = false;
  absl::Duration interval;  // With --follow, between two looks.
  absl::Duration patience;  // And how long a coordinator that has answered may be away.
  std::function<bool()> stop;
  std::function<void(const std::string&)> print;
};

// Prints those that the flags ask for; with --follow until `stop` says so, or until the coordinator
// is gone: OK after the run's end, else its error. The flags have been checked.
absl::Status EventsCommand(RunAdmin& run, const EventsOptions& options);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_EVENTS_COMMAND_H_
