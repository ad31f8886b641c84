// A model's parameters alone, with the configuration that says what they are: what a replay and an
// import write, and a run can start from. An array file of kind "CWAYPARM"; docs/formats.md.
#ifndef CAUSEWAY_COMMON_FILES_PARAMETERS_FILE_H_
#define CAUSEWAY_COMMON_FILES_PARAMETERS_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
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

// A verified file whose values stay on disk. Immutable.
class MappedParameters {
 public:
  // Errors of ArrayFile::Read; DATA_LOSS if the configuration or the array is missing;
  // FAILED_PRECONDITION for the values of some fragments alone, as former releases kept them.
  // Whether configuration and array belong together is for the caller to check.
  static absl::StatusOr<MappedParameters> Open(FileSystem& file_system, const std::string& path);

  const nlohmann::json& metadata() const { return file_.metadata(); }
  const std::string& config() const { return config_; }
  int64_t size() const { return size_; }
  // Copies the values from `begin` on, of which there are so many.
  void Copy(int64_t begin, std::span<float> out) const;

 private:
  explicit MappedParameters(ArrayFile file) : file_(std::move(file)) {}
  ArrayFile file_;
  std::string config_;
  int64_t size_ = 0;
};

// The same with all values in memory.
absl::StatusOr<ParametersFile> ReadParametersFile(FileSystem& file_system, const std::string& path);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_FILES_PARAMETERS_FILE_H_
