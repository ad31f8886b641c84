#include "common/files/parameters_file.h"

#include <array>
#include <cstring>
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

absl::StatusOr<MappedParameters> MappedParameters::Open(FileSystem& file_system,
                                                        const std::string& path) {
  ASSIGN_OR_RETURN(ArrayFile file, ArrayFile::Read(file_system, path, kParametersKind, kVersion));
  MappedParameters result(std::move(file));
  const nlohmann::json& metadata = result.metadata();
  const NamedBytes* const array = result.file_.Find(kArray);
  if (!metadata.is_object() || !metadata.contains("config") || !metadata["config"].is_string() ||
      array == nullptr || array->bytes.size() % sizeof(float) != 0) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: it lacks its configuration or its parameters"));
  }
  result.config_ = metadata["config"].get<std::string>();
  result.size_ = static_cast<int64_t>(array->bytes.size() / sizeof(float));
  if (metadata.contains("fragments")) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        " has the parameters of some fragments alone, as former releases kept them where "
        "several coordinators served a run: give a file with all of them"));
  }
  return result;
}

void MappedParameters::Copy(int64_t begin, std::span<float> out) const {
  const auto from = static_cast<size_t>(begin) * sizeof(float);
  const std::span<const uint8_t> bytes = file_.Find(kArray)->bytes.subspan(from, out.size_bytes());
  std::memcpy(out.data(), bytes.data(), bytes.size());
}

absl::StatusOr<ParametersFile> ReadParametersFile(FileSystem& file_system,
                                                  const std::string& path) {
  ASSIGN_OR_RETURN(const MappedParameters file, MappedParameters::Open(file_system, path));
  ParametersFile result{.metadata = file.metadata(), .config = file.config(), .values = {}};
  result.values.resize(static_cast<size_t>(file.size()));
  file.Copy(0, result.values);
  return result;
}

}  // namespace causeway
