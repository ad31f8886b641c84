#include "worker/train/evaluate.h"

#include <algorithm>
#include <vector>

#include "common/base/status_macros.h"

namespace causeway::worker {

absl::StatusOr<double> EvaluateLoss(EvaluationModel& model, std::span<const float> parameters,
                                    const HeldOutWindows& windows) {
  RETURN_IF_ERROR(model.UseParameters(parameters));
  const int64_t length = model.sequence_length();
  double sum = 0;
  double weights = 0;  // Windows; with document masking those with fewer targets count less.
  for (int64_t first = 0; first < windows.size();) {
    const int64_t count = std::min<int64_t>(windows.size() - first, model.micro_batch_sequences());
    std::vector<int32_t> inputs(static_cast<size_t>(count * length));
    std::vector<int32_t> targets(inputs.size());
    std::vector<int32_t> document_starts(windows.document_masking() ? inputs.size() : 0);
    RETURN_IF_ERROR(windows.Read(first, inputs, targets, document_starts));
    const auto predicted = std::ranges::count_if(targets, [](int32_t t) { return t >= 0; });
    const double weight = static_cast<double>(predicted) / static_cast<double>(length);
    if (predicted > 0) {
      ASSIGN_OR_RETURN(const double loss, model.Loss(inputs, targets, document_starts));
      sum += loss * weight;
    }
    weights += weight;
    first += count;
  }
  return weights > 0 ? sum / weights : 0;
}

}  // namespace causeway::worker
