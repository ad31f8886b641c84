#include "worker/train/evaluate.h"

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"

namespace causeway::worker {

absl::StatusOr<double> EvaluateLoss(CpuTransformer<float>& model, std::span<const float> parameters,
                                    const HeldOutWindows& windows) {
  const int64_t length = model.sequence_length();
  double sum = 0;
  for (int64_t first = 0; first < windows.size();) {
    const int64_t count = std::min<int64_t>(windows.size() - first, model.micro_batch_sequences());
    std::vector<int32_t> inputs(static_cast<size_t>(count * length));
    std::vector<int32_t> targets(inputs.size());
    RETURN_IF_ERROR(windows.Read(first, inputs, targets));
    sum += model.Loss(parameters, inputs, targets) * static_cast<double>(count);
    first += count;
  }
  return sum / static_cast<double>(windows.size());
}

}  // namespace causeway::worker
