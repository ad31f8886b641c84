// Parameters of ours as a folder that transformers' from_pretrained loads.
#ifndef CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_EXPORT_H_
#define CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_EXPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"

namespace causeway {

struct ExportOptions {
  bool bf16 = false;  // Otherwise fp32.
  uint64_t max_file_bytes = uint64_t{5} << 30;
  int64_t max_positions = 0;  // As MakeHuggingFaceConfig takes it.
  // A folder whose tokenizer files are copied, with its generation_config.json and the token ids
  // (eos_token_id and so on) of its config.json; or a file, *.json or *.model, which is copied
  // under the name that transformers looks for, with the tokenizer_config.json beside it. That of a
  // tokenizer.json gets a tokenizer_class if it names none, so that transformers takes it as it is.
  std::string tokenizer = {};
  // bos_token_id and eos_token_id where no such config.json gives them.
  std::optional<int32_t> begin_of_text = std::nullopt;
  std::optional<int32_t> end_of_text = std::nullopt;
};

// Writes the safetensors, config.json last, into `folder`, which is created. The vocabulary's
// padding is cut off. Where a model lies already, a tokenizer that is given takes the place of all
// files of the former one. INVALID_ARGUMENT if no architecture has the model's shape, for a
// tokenizer's file of another kind, or for a damaged config.json of the tokenizer; errors of the
// disk.
absl::Status ExportHuggingFace(FileSystem& file_system, const v1::ModelConfig& model,
                               const FragmentPlan& plan, std::span<const float> parameters,
                               const std::string& folder, const ExportOptions& options);

// The same on the machine's disks, where a model in `folder` is replaced as a whole: whoever loads
// it gets the old one or the new one (replace_folder.h). Files that are no weights stay.
absl::Status ReplaceHuggingFace(const v1::ModelConfig& model, const FragmentPlan& plan,
                                std::span<const float> parameters, const std::string& folder,
                                const ExportOptions& options);

// Does that: has `write` fill `folder` or, where it holds a model, a new one that takes its
// place.
absl::Status ReplaceModel(const std::string& folder,
                          const std::function<absl::Status(const std::string& path)>& write);

// Refuse what they can before anything is fetched or written: --tokenizer names none
// (INVALID_ARGUMENT, NOT_FOUND); --out is a file, holds a model that is not to be replaced, or
// cannot be replaced (FAILED_PRECONDITION).
absl::Status CheckTokenizer(FileSystem& file_system, const std::string& source);
absl::Status CheckModelFolder(const std::string& folder, bool replace);

// A model may be somebody's only copy and is not written over unasked: FAILED_PRECONDITION, naming
// what was found and --replace, if the folder holds one.
absl::Status CheckNoModel(FileSystem& file_system, const std::string& folder);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_HUGGINGFACE_HUGGINGFACE_EXPORT_H_
