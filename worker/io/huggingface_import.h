// A checkpoint of Hugging Face as parameters of ours.
#ifndef CAUSEWAY_WORKER_IO_HUGGINGFACE_IMPORT_H_
#define CAUSEWAY_WORKER_IO_HUGGINGFACE_IMPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/huggingface/huggingface_config.h"

namespace causeway::worker {

struct ImportedModel {
  HuggingFaceModel description;
  v1::RunConfig config;           // Complete: the model, and defaults.
  std::vector<float> parameters;  // The arena of config's plan; the vocabulary's padding is zero.
};

// Reads config.json and the safetensors of `folder`. fp32 keeps its bits; bf16 and fp16 become the
// same values. Errors of ReadHuggingFaceConfig and SafetensorsFolder; INVALID_ARGUMENT, with the
// tensor's name and both shapes, for a tensor that is missing, that this model does not have, that
// has another shape or dtype, or holds a value that is not finite.
absl::StatusOr<ImportedModel> ImportHuggingFace(FileSystem& file_system, const std::string& folder,
                                                int sequence_length);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_IO_HUGGINGFACE_IMPORT_H_
