// A model's parameters as a folder: what `export` writes and a run can start from.
//
//   model.safetensors   the tensors of the run, under its names (tensor_table.h), without the rows
//                       that pad the vocabulary; or several files with an index
//   model.textproto     a RunConfig with `model` alone: what the tensors are of; not there where
//                       the run's tensors are those of another program (RunConfig.tensors)
//
// python3 -m causeway.huggingface turns such a folder into one of Hugging Face's and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/files/safetensors.h"
#include "common/params/fragment_plan.h"

namespace causeway {

inline constexpr char kModelFile[] = "model.textproto";

struct ModelFolderOptions {
  bool bf16 = false;  // Otherwise fp32.
  uint64_t max_file_bytes = uint64_t{5} << 30;
};

// Writes `parameters`, the arena of config's plan, into `folder`, which is created.
absl::Status WriteModelFolder(FileSystem& file_system, const v1::RunConfig& config,
                              const FragmentPlan& plan, std::span<const float> parameters,
                              const std::string& folder, const ModelFolderOptions& options);

// The same on the machine's disks, where a model in `folder` is replaced as a whole: whoever loads
// it gets the old one or the new one (replace_folder.h). Files that are not the model's stay.
absl::Status ReplaceModelFolder(const v1::RunConfig& config, const FragmentPlan& plan,
                                std::span<const float> parameters, const std::string& folder,
                                const ModelFolderOptions& options);

// Refuses what it can before anything is fetched or written: FAILED_PRECONDITION if `folder` is a
// file, holds a model that is not to be replaced, or cannot be replaced.
absl::Status CheckModelFolder(const std::string& folder, bool replace);

struct ModelFolder {
  v1::RunConfig config;       // Complete: the model, and defaults.
  std::vector<float> values;  // The arena of config's plan; the vocabulary's padding is zero.
};

// INVALID_ARGUMENT, naming folder and tensor, for tensors that are missing, too many, of another
// shape or dtype, or not finite; errors of SafetensorsFolder and ParseRunConfig.
absl::StatusOr<ModelFolder> ReadModelFolder(FileSystem& file_system, const std::string& folder);
absl::StatusOr<v1::RunConfig> ReadModelFile(FileSystem& file_system, const std::string& folder);
bool IsModelFolder(FileSystem& file_system, const std::string& path);

// Safetensors alone: a file, a folder, or an index in it. All of their tensors are readable
// afterwards.
absl::StatusOr<SafetensorsFolder> OpenWeights(FileSystem& file_system, const std::string& path);

// Such tensors as a plan's arena. INVALID_ARGUMENT as of ReadModelFolder.
absl::StatusOr<std::vector<float>> ReadWeights(FileSystem& file_system, const std::string& path,
                                               const FragmentPlan& plan);

// The values of a safetensors' tensor, whatever its floating-point type.

// Reads F32, BF16 and F16, each exactly. The tensor's bytes may lie at any address and outlive
// this.
class TensorValues {
 public:
  // Its dtype is one that Reads names.
  explicit TensorValues(const SafeTensor& tensor)
      : bytes_(tensor.bytes.data()), wide_(tensor.dtype == "F32"), half_(tensor.dtype == "F16") {}

  static bool Reads(const std::string& dtype) {
    return dtype == "F32" || dtype == "BF16" || dtype == "F16";
  }

  float At(int64_t index) const;

 private:
  const uint8_t* const bytes_;
  const bool wide_;
  const bool half_;
};

}  // namespace causeway
