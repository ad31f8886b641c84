// The parameters of a run of `tensors` as a folder of plain safetensors.
#ifndef CAUSEWAY_COMMON_HUGGINGFACE_TENSOR_EXPORT_H_
#define CAUSEWAY_COMMON_HUGGINGFACE_TENSOR_EXPORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"

namespace causeway {

// Writes the tensors, in their order and under their names and shapes, into `folder`, which is
// created: model.safetensors or, above `max_file_bytes`, several files and an index. In fp32, or
// rounded to bf16. `plan` is theirs. Nothing is written that says what the model computes: who
// loads it has its code.
absl::Status ExportTensors(FileSystem& file_system, const std::vector<TensorInfo>& tensors,
                           const FragmentPlan& plan, std::span<const float> parameters, bool bf16,
                           uint64_t max_file_bytes, const std::string& folder);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_HUGGINGFACE_TENSOR_EXPORT_H_
