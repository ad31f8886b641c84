// Scripts by which a shell completes causewayctl's commands and flags.
#ifndef CAUSEWAY_SERVER_CTL_COMPLETION_H_
#define CAUSEWAY_SERVER_CTL_COMPLETION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway::server {

inline constexpr absl::string_view kCommands[] = {
    "status", "watch", "workers", "rounds", "events", "pause",    "resume",    "drain",
    "reject", "stop",  "export",  "config", "plan",   "simulate", "completion"};

// A script to be sourced. It offers a command those flags whose help begins with its name, and what
// all commands take. INVALID_ARGUMENT unless `shell` is bash or zsh.
absl::StatusOr<std::string> CompletionScript(const std::string& shell);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_COMPLETION_H_
