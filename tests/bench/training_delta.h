// Deltas as they come in training: what one worker would send, from a short run on real text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"

namespace causeway::bench {

struct TrainingDeltaOptions {
  std::string data;  // A folder that `causeway-worker tokenize` wrote.
  std::string model = "tiny-1m";
  v1::TrainConfig::Optimizer optimizer = v1::TrainConfig::ADAMW;
  int steps_before = 60;  // Until the first of the steps that the delta spans.
  int interval = 30;      // H, the steps that it spans.
};

struct TrainingDelta {
  std::vector<float> published, local;  // Before the interval and after it, in arena order.
  double loss = 0;                      // Loss of the last step.
};

// Progress goes to standard error. Errors of the configuration and of the data.
absl::StatusOr<TrainingDelta> TrainForDelta(const TrainingDeltaOptions& options);

}  // namespace causeway::bench
