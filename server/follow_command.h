// `causeway-coordinator follow`.
#ifndef CAUSEWAY_SERVER_FOLLOW_COMMAND_H_
#define CAUSEWAY_SERVER_FOLLOW_COMMAND_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/security.h"

namespace causeway::server {

struct FollowFlags {
  std::string run_dir;
  std::string http;  // As --http.
  std::string http_address_file;
  SecurityOptions security;
};

// Copies, by these flags, its own and those of the store, until `stop_requested`,
// which waits for that long, says so: OK then. `refused` is set if an error came before anything
// was copied.
absl::Status FollowCommand(const FollowFlags& flags,
                           const std::function<bool(absl::Duration)>& stop_requested,
                           bool& refused);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_FOLLOW_COMMAND_H_
