// Writes a model's folder of safetensors (safetensors.h).
#ifndef CAUSEWAY_COMMON_FILES_SAFETENSORS_WRITER_H_
#define CAUSEWAY_COMMON_FILES_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_system.h"

namespace causeway {

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

#endif  // CAUSEWAY_COMMON_FILES_SAFETENSORS_WRITER_H_
