// A model whose losses can be asked for, on whatever device it lies.
#ifndef CAUSEWAY_WORKER_TRAIN_EVALUATION_MODEL_H_
#define CAUSEWAY_WORKER_TRAIN_EVALUATION_MODEL_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {

// Not thread-safe.
class EvaluationModel {
 public:
  virtual ~EvaluationModel() = default;

  virtual int64_t sequence_length() const = 0;    // Tokens per window, at most.
  virtual int micro_batch_sequences() const = 0;  // Windows per call, at most.

  // The parameters of the calls that follow, in the plan's arena order. They stay as they are and
  // where they are until the last of these calls.
  virtual absl::Status UseParameters(std::span<const float> parameters) = 0;

  // Both as CpuTransformer's methods of those names.
  virtual absl::StatusOr<double> Loss(std::span<const int32_t> inputs,
                                      std::span<const int32_t> targets,
                                      std::span<const int32_t> document_starts) = 0;
  virtual absl::Status TokenLosses(std::span<const int32_t> inputs,
                                   std::span<const int32_t> targets, int64_t length,
                                   std::span<float> losses) = 0;
};

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

#endif  // CAUSEWAY_WORKER_TRAIN_EVALUATION_MODEL_H_
