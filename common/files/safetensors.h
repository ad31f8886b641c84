// Hugging Face's safetensors: one file, or a folder of them with an index.
//
//   offset  bytes  content
//   0       8      N: bytes of the header, little endian
//   8       N      header: JSON, {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, ...,
//                  "__metadata__": {"KEY": "TEXT", ...}}; may end with spaces
//   8 + N   ...    the tensors, row-major; offsets count from here
//
// Files come from anywhere: every length and offset is checked, and the tensors must fill the rest
// of the file without a gap and without an overlap.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"

namespace causeway {

inline constexpr char kSafetensorsFile[] = "model.safetensors";
inline constexpr char kSafetensorsIndexFile[] = "model.safetensors.index.json";

struct SafeTensor {
  std::string dtype;  // "F32", "BF16", "F16", or another of the format's names.
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;  // In the mapping.
};

// "[3, 4]"; "[]" for a scalar.
std::string ShapeText(std::span<const int64_t> shape);

// Immutable and thread-safe. Files are mapped and read where they lie.
class SafetensorsFile {
 public:
  // INVALID_ARGUMENT, naming the file, for whatever the format does not allow; NOT_FOUND.
  static absl::StatusOr<SafetensorsFile> Open(FileSystem& file_system, const std::string& path);

  // By name.
  const std::map<std::string, SafeTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, SafeTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// All tensors of a model's folder. Immutable and thread-safe.
class SafetensorsFolder {
 public:
  // Reads model.safetensors.index.json and the files that it names or, without an index,
  // model.safetensors. NOT_FOUND if there is neither. INVALID_ARGUMENT for an index that names a
  // file outside the folder, or other tensors than its files have, and for a model.safetensors
  // beside an index of other files; errors of SafetensorsFile.
  static absl::StatusOr<SafetensorsFolder> Open(FileSystem& file_system, const std::string& folder);

  // The tensors of the one file `path`. Errors of SafetensorsFile.
  static absl::StatusOr<SafetensorsFolder> OpenFile(FileSystem& file_system,
                                                    const std::string& path);

  const std::map<std::string, SafeTensor>& tensors() const { return tensors_; }

 private:
  SafetensorsFolder() = default;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, SafeTensor> tensors_;
};

// Writes a model's folder of safetensors (safetensors.h).

// A tensor that is made piece by piece while it is written, so that a model never exists twice.
struct TensorSource {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  // Fills `out` with the tensor's bytes from `begin` on; both are multiples of 4, or end with the
  // tensor.
  std::function<void(uint64_t begin, std::span<uint8_t> out)> read;
};

// Writes the tensors in their order: model.safetensors or, if they are more than max_file_bytes
// together, model-00001-of-00003.safetensors and so on with an index (a tensor larger than that has
// a file of its own). Each file is replaced as a whole, the index last; files of an earlier export
// into the same folder that this one does not have are removed.
absl::Status WriteSafetensors(FileSystem& file_system, const std::string& folder,
                              const std::vector<TensorSource>& tensors, uint64_t max_file_bytes);

}  // namespace causeway
