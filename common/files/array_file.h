// A file of named arrays with a JSON header and one checksum over all of it: what checkpoints are
// made of.
//
// All integers are little endian.
//
//   offset       bytes  content
//   0            8      the kind of file, e.g. "CWAYWORK"
//   8            4      format version of that kind
//   12           4      N: bytes of the header
//   16           N      header: JSON, UTF-8: {"metadata": ..., "arrays": [{"name", "bytes"}, ...]}
//   16 + N       ...    the arrays, one after the other in the order of the header
//   end - 8      8      TreeHash (common/base/checksum.h) of everything before it
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/byte_buffer.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"

namespace causeway {

using ArrayFileKind = std::array<char, 8>;

struct NamedBytes {
  std::string name;  // Unique in the file.
  std::span<const uint8_t> bytes;
};

template <typename T>
NamedBytes NameBytes(std::string name, std::span<T> values) {
  return {std::move(name), {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()}};
}

// Appends the whole content to an empty file: checksummed while it is written, in writes of 4 MiB.
// The header is padded with spaces so that the arrays of a file of 1 MiB or more begin on a
// multiple of 4,096. Syncs nothing. The file's size is ArrayFileBytes.
absl::Status WriteArrays(WritableFile& file, const ArrayFileKind& kind, uint32_t version,
                         const nlohmann::json& metadata, std::span<const NamedBytes> arrays);
uint64_t ArrayFileBytes(const nlohmann::json& metadata, std::span<const NamedBytes> arrays);
// The same content, wherever `append` puts it.
absl::Status AppendArrays(absl::FunctionRef<absl::Status(std::span<const uint8_t>)> append,
                          const ArrayFileKind& kind, uint32_t version,
                          const nlohmann::json& metadata, std::span<const NamedBytes> arrays);

// Replaces `path` durably: write, sync, rename, sync the folder. After an error the old file
// stands.
absl::Status WriteArrayFile(FileSystem& file_system, const std::string& path,
                            const ArrayFileKind& kind, uint32_t version,
                            const nlohmann::json& metadata, std::span<const NamedBytes> arrays);

// A verified file. Immutable; the arrays live as long as it does.
class ArrayFile {
 public:
  // DATA_LOSS, with the path, if the file is cut short, is of another kind, fails its checksum or
  // contradicts itself; FAILED_PRECONDITION if its version is not `version`.
  static absl::StatusOr<ArrayFile> Read(FileSystem& file_system, const std::string& path,
                                        const ArrayFileKind& kind, uint32_t version);
  // The same, with the whole file in memory: a disk that fails to read is an error then, where a
  // page of a mapping that cannot be read ends the process.
  static absl::StatusOr<ArrayFile> ReadIntoMemory(FileSystem& file_system, const std::string& path,
                                                  const ArrayFileKind& kind, uint32_t version);
  // The same of bytes that are there already; `name` stands in errors.
  static absl::StatusOr<ArrayFile> Parse(SharedBytes all, const std::string& name,
                                         const ArrayFileKind& kind, uint32_t version);

  const nlohmann::json& metadata() const { return metadata_; }
  // In file order.
  const std::vector<NamedBytes>& arrays() const { return arrays_; }
  // Copies an array of exactly that many bytes. DATA_LOSS if it is absent or of another size.
  absl::Status CopyTo(const std::string& name, std::span<uint8_t> out) const;
  template <typename T>
  absl::Status CopyTo(const std::string& name, std::span<T> out) const {
    return CopyTo(name, std::span(reinterpret_cast<uint8_t*>(out.data()), out.size_bytes()));
  }
  // Null if there is none.
  const NamedBytes* Find(const std::string& name) const;

 private:
  ArrayFile() = default;
  std::string path_;
  SharedBytes content_;
  nlohmann::json metadata_;
  std::vector<NamedBytes> arrays_;
};

// A model's parameters alone, with the configuration that says what they are: what a replay and an
// import write, and a run can start from. An array file of kind "CWAYPARM"; docs/formats.md.

inline constexpr ArrayFileKind kParametersKind = {'C', 'W', 'A', 'Y', 'P', 'A', 'R', 'M'};

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
  // metadata["config"]: a complete RunConfig as a textproto.
  const std::string& config() const { return config_; }
  // Values: the arena, in that configuration's plan.
  int64_t size() const { return size_; }
  // Copies the values from `begin` on, of which there are so many.
  void Copy(int64_t begin, std::span<float> out) const;
  std::vector<float> All() const;

 private:
  explicit MappedParameters(ArrayFile file) : file_(std::move(file)) {}
  ArrayFile file_;
  std::string config_;
  int64_t size_ = 0;
};

}  // namespace causeway
