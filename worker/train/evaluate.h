// The loss on text that was not trained on.
#ifndef CAUSEWAY_WORKER_TRAIN_EVALUATE_H_
#define CAUSEWAY_WORKER_TRAIN_EVALUATE_H_

#include <span>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/data/window_sampler.h"

namespace causeway::worker {

// Mean cross entropy over the windows, in nats per token. Errors of HeldOutWindows::Read and of the
// model's device.
absl::StatusOr<double> EvaluateLoss(EvaluationModel& model, std::span<const float> parameters,
                                    const HeldOutWindows& windows);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_TRAIN_EVALUATE_H_
