// The loss on text that was not trained on.
#ifndef CAUSEWAY_WORKER_TRAIN_EVALUATE_H_
#define CAUSEWAY_WORKER_TRAIN_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/backend/backend.h"
#include "worker/data/choice_task.h"
#include "worker/data/window_sampler.h"

namespace causeway::worker {

// Mean cross entropy over the windows, in nats per token. Errors of HeldOutWindows::Read and of the
// model's device.
absl::StatusOr<double> EvaluateLoss(EvaluationModel& model, std::span<const float> parameters,
                                    const HeldOutWindows& windows);

// How often a model finds the right completion likeliest.

struct ChoiceAccuracy {
  int64_t examples = 0;
  double accuracy = 0;    // By the probability of the whole completion.
  double normalized = 0;  // By its mean log-probability per token, as llm.c counts.
  double loss = 0;        // Nats per token of the right completions, mean over the examples.
  int64_t cut = 0;        // Examples whose context lost its beginning to fit the window.
};

// Under the names of docs/formats.md.
nlohmann::json ChoiceAccuracyToJson(const ChoiceAccuracy& accuracy);

// INVALID_ARGUMENT if there is no example, or one has a completion longer than the model's window.
absl::Status CheckChoices(std::span<const ChoiceExample> examples, int64_t window);

// The first of two equally good completions is taken. Errors of CheckChoices; CANCELLED once
// `progress` (done, all), which may be null, returns false.
absl::StatusOr<ChoiceAccuracy> EvaluateChoices(
    EvaluationModel& model, std::span<const float> parameters,
    std::span<const ChoiceExample> examples,
    const std::function<bool(int64_t, int64_t)>& progress = nullptr);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_TRAIN_EVALUATE_H_
