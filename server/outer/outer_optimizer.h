// The coordinator's optimizer: what a round's merged contribution does to theta (arXiv 2501.18512,
// section 2.1; algorithm.md, "The coordinator").
//
// The merged contribution g arrives in double, every step is computed in double (AdamW: in fp32,
// like the worker's) and every stored value is rounded once. With the FP32 codec a delta is the
// exact difference of two fp32 values, and double holds it exactly if the two lie within a factor
// of 2^28; so one worker, learning rate 1 and momentum 0 give theta = published - (published -
// local) = local without any rounding: plain training, bit for bit.
//
// An optimizer holds no state of its own: the caller keeps theta and the named state arrays, as
// long as theta, zero at first. Thread-safety: const methods may run on any threads at once, on
// disjoint slices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"

namespace causeway::server {

// A range of values of a fragment, and all that a step reads or writes there. All spans are
// equally long.
struct OuterSlice {
  int64_t arena_begin = 0;    // Where the first value lies in the plan's arena.
  int64_t round = 0;          // Counts from 1.
  double gradient_norm = 0;   // Norm of the whole fragment's g, if needs_gradient_norm().
  std::span<const double> g;  // The weighted sum of the deltas, or of the gradients.
  std::span<float> theta;
  std::vector<std::span<float>> state;  // In the order of state_names().
};

class OuterOptimizer {
 public:
  explicit OuterOptimizer(std::vector<std::string> state_names)
      : state_names_(std::move(state_names)) {}
  virtual ~OuterOptimizer() = default;

  // The arrays of state beside theta, by the names under which they are saved.
  const std::vector<std::string>& state_names() const { return state_names_; }
  virtual bool needs_gradient_norm() const { return false; }
  // One step of theta and state. Values may become infinite; the caller checks.
  virtual void Step(const OuterSlice& slice) const = 0;

 private:
  const std::vector<std::string> state_names_;
};

//   NESTEROV  b = mu * b + g;  theta = theta - lr * (g + mu * b)     state: momentum
//             (torch.optim.SGD with nesterov=True, dampening=0)
//   SGD       theta = theta - lr * g                                 no state
//   ADAMW     common/params/adamw.h with the hyper-parameters, schedule and weight decay of
//             `train`, at step = round; g is clipped to train.clip_norm first. State: m, v
//   ADAM      Adam on the merged delta (FedAdam, arXiv 2003.00295), bias-corrected at step = round,
//             with outer.beta1, beta2 and epsilon; step_kernels.h has the formula. State: m, v
//
// Both configurations are complete (CompleteRunConfig); `tensors` are the plan's: weight decay
// applies where TensorInfo::decays(). INVALID_ARGUMENT for an optimizer that is none of these.
absl::StatusOr<std::unique_ptr<OuterOptimizer>> CreateOuterOptimizer(
    const v1::OuterConfig& outer, const v1::TrainConfig& train,
    std::span<const PlacedTensor> tensors);

}  // namespace causeway::server
