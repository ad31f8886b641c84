#include "common/files/parameters_file.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

constexpr uint32_t kVersion = 1;
constexpr char kArray[] = "parameters";

}  // namespace

absl::Status WriteParametersFile(FileSystem& file_system, const std::string& path,
                                 nlohmann::json metadata, const std::string& config,
                                 std::span<const float> values) {
  metadata["config"] = config;
  const std::array arrays = {NameBytes(kArray, values)};
  return WriteArrayFile(file_system, path, kParametersKind, kVersion, metadata, arrays);
}

absl::StatusOr<ParametersFile> ReadParametersFile(FileSystem& file_system,
                                                  const std::string& path) {
  ASSIGN_OR_RETURN(const ArrayFile file,
                   ArrayFile::Read(file_system, path, kParametersKind, kVersion));
  ParametersFile result;
  result.metadata = file.metadata();
  const NamedBytes* const array = file.Find(kArray);
  if (!result.metadata.is_object() || !result.metadata.contains("config") ||
      !result.metadata["config"].is_string() || array == nullptr ||
      array->bytes.size() % sizeof(float) != 0) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: it lacks its configuration or its parameters"));
  }
  result.config = result.metadata["config"].get<std::string>();
  result.values.resize(array->bytes.size() / sizeof(float));
  RETURN_IF_ERROR(file.CopyTo(kArray, std::span(result.values)));
  return result;
}

}  // namespace causeway
