// What a shell needs to complete causewayctl's commands and flags.
#ifndef CAUSEWAY_SERVER_CTL_COMPLETION_H_
#define CAUSEWAY_SERVER_CTL_COMPLETION_H_

#include <string>

#include "absl/status/statusor.h"

namespace causeway::server {

// A script to be sourced. INVALID_ARGUMENT unless `shell` is bash or zsh.
absl::StatusOr<std::string> CompletionScript(const std::string& shell);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_COMPLETION_H_
