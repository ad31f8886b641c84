// A model whose losses can be asked for, on whatever device it lies.
#ifndef CAUSEWAY_WORKER_BACKEND_EVALUATION_MODEL_H_
#define CAUSEWAY_WORKER_BACKEND_EVALUATION_MODEL_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

  // As CpuTransformer's methods of those names (worker/backend/cpu/cpu_transformer.h).
  virtual absl::StatusOr<double> Loss(std::span<const int32_t> inputs,
                                      std::span<const int32_t> targets,
                                      std::span<const int32_t> document_starts) = 0;
  virtual absl::Status TokenLosses(std::span<const int32_t> inputs,
                                   std::span<const int32_t> targets, int64_t length,
                                   std::span<float> losses) = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_EVALUATION_MODEL_H_
