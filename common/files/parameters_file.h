// A model's parameters alone, with the configuration that says what they are: what a replay and an
// import write, and a run can start from. An array file of kind "CWAYPARM"; docs/formats.md.
#ifndef CAUSEWAY_COMMON_FILES_PARAMETERS_FILE_H_
#define CAUSEWAY_COMMON_FILES_PARAMETERS_FILE_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/files/array_file.h"
#include "nlohmann/json.hpp"

namespace causeway {

inline constexpr ArrayFileKind kParametersKind = {'C', 'W', 'A', 'Y', 'P', 'A', 'R', 'M'};

struct ParametersFile {
  nlohmann::json metadata;    // "config" and whatever else the writer had to say.
  std::string config;         // metadata["config"]: a complete RunConfig as a textproto.
  std::vector<float> values;  // The arena, in that configuration's plan.
};

// Replaces `path` durably. `metadata` is an object and gets "config".
absl::Status WriteParametersFile(FileSystem& file_system, const std::string& path,
                                 nlohmann::json metadata, const std::string& config,
                                 std::span<const float> values);

// Errors of ArrayFile::Read; DATA_LOSS if the configuration or the array is missing. Whether the
// two belong together is for the caller to check.
absl::StatusOr<ParametersFile> ReadParametersFile(FileSystem& file_system, const std::string& path);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_FILES_PARAMETERS_FILE_H_
