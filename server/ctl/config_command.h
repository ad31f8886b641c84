// `causewayctl config`: configurations, without a coordinator but for `show`.
#ifndef CAUSEWAY_SERVER_CTL_CONFIG_COMMAND_H_
#define CAUSEWAY_SERVER_CTL_CONFIG_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"

namespace causeway::server {

// Of a file over a preset, either of which may be empty, but not both; complete. Warnings go to
// standard error. INVALID_ARGUMENT and the file system's errors.
absl::StatusOr<v1::RunConfig> LoadCompleteConfig(const std::string& file,
                                                 const std::string& preset);

// The names of all presets; with a name, that preset's complete textproto.
absl::StatusOr<std::string> PresetsText(const std::string& name);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_CONFIG_COMMAND_H_
