#include "common/files/array_file.h"

#include <algorithm>

#include "common/base/checksum.h"
#include "common/base/crash_point.h"
#include "common/files/json.h"

namespace causeway {
namespace {

using nlohmann::json;

constexpr size_t kPreambleBytes = 16;
constexpr size_t kChecksumBytes = 8;
constexpr size_t kAlignFrom = size_t{1} << 20;
constexpr size_t kAlignment = 4096;
constexpr size_t kWriteBytes = size_t{4} << 20;

// The header's text, padded.
std::string Header(const json& metadata, std::span<const NamedBytes> arrays) {
  json header = {{"metadata", metadata}, {"arrays", json::array()}};
  size_t bytes = 0;
  for (const NamedBytes& array : arrays) {
    header["arrays"].push_back({{"name", array.name}, {"bytes", array.bytes.size()}});
    bytes += array.bytes.size();
  }
  std::string text = header.dump();
  if (bytes >= kAlignFrom) {
    const size_t used = kPreambleBytes + text.size();
    text.resize((used + kAlignment - 1) / kAlignment * kAlignment - kPreambleBytes, ' ');
  }
  return text;
}

}  // namespace

uint64_t ArrayFileBytes(const json& metadata, std::span<const NamedBytes> arrays) {
  size_t bytes = kPreambleBytes + Header(metadata, arrays).size() + kChecksumBytes;
  for (const NamedBytes& array : arrays) bytes += array.bytes.size();
  return bytes;
}

absl::Status WriteArrays(WritableFile& file, const ArrayFileKind& kind, uint32_t version,
                         const json& metadata, std::span<const NamedBytes> arrays) {
  RETURN_IF_ERROR(file.Reserve(ArrayFileBytes(metadata, arrays)));
  return AppendArrays([&](std::span<const uint8_t> data) { return file.Append(data); }, kind,
                      version, metadata, arrays);
}

absl::Status AppendArrays(absl::FunctionRef<absl::Status(std::span<const uint8_t>)> append,
                          const ArrayFileKind& kind, uint32_t version, const json& metadata,
                          std::span<const NamedBytes> arrays) {
  const std::string header = Header(metadata, arrays);
  TreeHasher hasher;
  size_t written = 0;
  const auto append_hashed = [&](std::span<const uint8_t> data) -> absl::Status {
    while (!data.empty()) {
      // Up to the next multiple of kWriteBytes, so that every write but the first is aligned.
      const size_t size = std::min(data.size(), kWriteBytes - written % kWriteBytes);
      hasher.Update(data.first(size));
      RETURN_IF_ERROR(append(data.first(size)));
      written += size;
      data = data.subspan(size);
    }
    return absl::OkStatus();
  };
  std::vector<uint8_t> beginning(kPreambleBytes);
  const auto header_bytes = static_cast<uint32_t>(header.size());
  std::memcpy(beginning.data(), kind.data(), kind.size());
  std::memcpy(beginning.data() + 8, &version, sizeof(version));
  std::memcpy(beginning.data() + 12, &header_bytes, sizeof(header_bytes));
  beginning.insert(beginning.end(), header.begin(), header.end());
  RETURN_IF_ERROR(append_hashed(beginning));
  for (const NamedBytes& array : arrays) RETURN_IF_ERROR(append_hashed(array.bytes));
  CrashPoint("during_array_file");
  const uint64_t hash = hasher.Finish();
  return append({reinterpret_cast<const uint8_t*>(&hash), sizeof(hash)});
}

absl::Status WriteArrayFile(FileSystem& file_system, const std::string& path,
                            const ArrayFileKind& kind, uint32_t version, const json& metadata,
                            std::span<const NamedBytes> arrays) {
  return WriteFileAtomically(file_system, path, [&](WritableFile& file) {
    return WriteArrays(file, kind, version, metadata, arrays);
  });
}

absl::StatusOr<ArrayFile> ArrayFile::Read(FileSystem& file_system, const std::string& path,
                                          const ArrayFileKind& kind, uint32_t version) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, file_system.Map(path));
  return Parse(SharedBytes(file->bytes(), file), path, kind, version);
}

absl::StatusOr<ArrayFile> ArrayFile::ReadIntoMemory(FileSystem& file_system,
                                                    const std::string& path,
                                                    const ArrayFileKind& kind, uint32_t version) {
  ASSIGN_OR_RETURN(std::string text, file_system.ReadFile(path));
  const auto content = std::make_shared<const std::string>(std::move(text));
  return Parse(
      SharedBytes({reinterpret_cast<const uint8_t*>(content->data()), content->size()}, content),
      path, kind, version);
}

absl::StatusOr<ArrayFile> ArrayFile::Parse(SharedBytes all, const std::string& path,
                                           const ArrayFileKind& kind, uint32_t version) {
  ArrayFile result;
  result.path_ = path;
  result.content_ = std::move(all);
  const std::span<const uint8_t> bytes = result.content_.view();
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", what));
  };
  if (bytes.size() < kPreambleBytes + kChecksumBytes) {
    return damaged(absl::StrCat("it has only ", bytes.size(), " bytes"));
  }
  if (std::memcmp(bytes.data(), kind.data(), kind.size()) != 0) {
    return damaged(absl::StrCat("it does not begin with ",
                                absl::string_view(kind.data(), kind.size()),
                                " (is it a file of another kind?)"));
  }
  uint32_t found_version = 0;
  uint32_t header_bytes = 0;
  std::memcpy(&found_version, bytes.data() + 8, sizeof(found_version));
  std::memcpy(&header_bytes, bytes.data() + 12, sizeof(header_bytes));
  const std::span<const uint8_t> content = bytes.first(bytes.size() - kChecksumBytes);
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + content.size(), sizeof(checksum));
  if (TreeHash(content) != checksum) {
    return damaged(absl::StrCat("it has ", bytes.size(), " bytes, of which the last ",
                                kChecksumBytes, ", from offset ", content.size(),
                                ", are not the checksum of the others (it was cut short or "
                                "changed)"));
  }
  if (found_version != version) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has format version ", found_version,
                                                      "; this program reads version ", version,
                                                      ": use the program that wrote it"));
  }
  if (header_bytes > content.size() - kPreambleBytes) return damaged("its header is cut short");
  const std::span<const uint8_t> text = content.subspan(kPreambleBytes, header_bytes);
  json header = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  std::span<const uint8_t> rest = content.subspan(kPreambleBytes + header_bytes);
  try {
    for (const json& array : header.at("arrays")) {
      uint64_t size = 0;
      if (!ReadInteger(array.at("bytes"), size)) return damaged("an array has no number of bytes");
      if (size > rest.size()) return damaged("its arrays are cut short");
      result.arrays_.push_back({array.at("name").get<std::string>(), rest.first(size)});
      rest = rest.subspan(size);
    }
    result.metadata_ = std::move(header.at("metadata"));
  } catch (const json::exception&) {
    return damaged("its header does not describe arrays");
  }
  if (!rest.empty()) return damaged("it has more bytes than its header describes");
  return result;
}

const NamedBytes* ArrayFile::Find(const std::string& name) const {
  const auto found = std::ranges::find(arrays_, name, &NamedBytes::name);
  return found == arrays_.end() ? nullptr : &*found;
}

absl::Status ArrayFile::CopyTo(const std::string& name, std::span<uint8_t> out) const {
  const NamedBytes* const array = Find(name);
  if (array == nullptr) return absl::DataLossError(absl::StrCat(path_, " has no array ", name));
  if (array->bytes.size() != out.size()) {
    return absl::DataLossError(absl::StrCat(path_, ": array ", name, " has ", array->bytes.size(),
                                            " bytes; expected ", out.size()));
  }
  if (!out.empty()) std::memcpy(out.data(), array->bytes.data(), out.size());
  return absl::OkStatus();
}

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

std::vector<float> MappedParameters::All() const {
  std::vector<float> values(static_cast<size_t>(size_));
  Copy(0, values);
  return values;
}

}  // namespace causeway
