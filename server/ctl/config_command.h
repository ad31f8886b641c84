// `causewayctl config`: configurations, without a coordinator but for `show`.
#ifndef CAUSEWAY_SERVER_CTL_CONFIG_COMMAND_H_
#define CAUSEWAY_SERVER_CTL_CONFIG_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/run_config.h"

namespace causeway::server {

// Loads a complete configuration: a file over a preset, one of which may be empty. Warnings go to
// standard error. INVALID_ARGUMENT and the file system's errors.
absl::StatusOr<v1::RunConfig> LoadCompleteConfig(const std::string& file, const std::string& preset,
                                                 ModelIs model = ModelIs::kGiven);

// The names of all presets; with a name, that preset's complete textproto. Or both as JSON.
absl::StatusOr<std::string> PresetsText(const std::string& name, bool json);

// As common/files/message_json.h writes it.
std::string ConfigJson(const v1::RunConfig& config);

// Prints ConfigDifference's findings, one per line; or as JSON:
//   {"differences": ["train.steps: 800 -> 900"]}
std::string DifferenceText(const std::string& difference, bool json);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CTL_CONFIG_COMMAND_H_
