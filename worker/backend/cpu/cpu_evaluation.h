// A model on CPU cores whose losses can be asked for.
#ifndef CAUSEWAY_WORKER_BACKEND_CPU_CPU_EVALUATION_H_
#define CAUSEWAY_WORKER_BACKEND_CPU_CPU_EVALUATION_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/backend/evaluation_model.h"

namespace causeway::worker {

class CpuEvaluationModel final : public EvaluationModel {
 public:
  // `transformer` outlives this and is used by its calls alone.
  explicit CpuEvaluationModel(CpuTransformer<float>* transformer) : transformer_(*transformer) {}

  int64_t sequence_length() const override { return transformer_.sequence_length(); }
  int micro_batch_sequences() const override { return transformer_.micro_batch_sequences(); }
  absl::Status UseParameters(std::span<const float> parameters) override;
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                              std::span<const int32_t> document_starts) override;
  absl::Status TokenLosses(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                           int64_t length, std::span<float> losses) override;

 private:
  CpuTransformer<float>& transformer_;
  std::span<const float> parameters_;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_CPU_CPU_EVALUATION_H_
