#include "worker/backend/cpu/cpu_evaluation.h"

namespace causeway::worker {

absl::Status CpuEvaluationModel::UseParameters(std::span<const float> parameters) {
  parameters_ = parameters;
  return absl::OkStatus();
}

absl::StatusOr<double> CpuEvaluationModel::Loss(std::span<const int32_t> inputs,
                                                std::span<const int32_t> targets,
                                                std::span<const int32_t> document_starts) {
  return transformer_.Loss(parameters_, inputs, targets, document_starts);
}

absl::Status CpuEvaluationModel::TokenLosses(std::span<const int32_t> inputs,
                                             std::span<const int32_t> targets, int64_t length,
                                             std::span<float> losses) {
  transformer_.TokenLosses(parameters_, inputs, targets, length, losses);
  return absl::OkStatus();
}

}  // namespace causeway::worker
