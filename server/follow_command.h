// `causeway-coordinator follow`.
#ifndef CAUSEWAY_SERVER_FOLLOW_COMMAND_H_
#define CAUSEWAY_SERVER_FOLLOW_COMMAND_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/security.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

struct FollowFlags {
  std::string run_dir;
  std::string of;    // HOST:PORT.
  std::string name;  // Empty: the machine's.
  SecurityOptions security;
  RunDirectoryStore::Options store;
};

// Copies until `stop_requested`, which waits for that long, says so: OK then. `refused` is set if
// an error came before anything was copied.
absl::Status FollowCommand(const FollowFlags& flags,
                           const std::function<bool(absl::Duration)>& stop_requested,
                           bool& refused);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_FOLLOW_COMMAND_H_
