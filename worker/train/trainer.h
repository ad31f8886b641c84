// One site's training between synchronizations: data, model and inner optimizer around one arena
// of weights. Knows nothing of rounds, fragments in flight or the network.
//
// Step is a pure function of (weights, moments, counters, data): a trainer that continues with the
// same ones repeats bit for bit.
#ifndef CAUSEWAY_WORKER_TRAIN_TRAINER_H_
#define CAUSEWAY_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/data/dataset.h"
#include "worker/data/window_sampler.h"
#include "worker/train/choice_accuracy.h"
#include "worker/train/optimizer.h"

namespace causeway::worker {

struct StepReport {
  double loss = 0;  // Mean cross entropy of the step's windows, nats per token.
  int64_t tokens = 0;
  int64_t draws = 0;                      // Windows.
  std::optional<OptimizerReport> update;  // Empty where gradients are what is synchronized.
};

// Not thread-safe: one training thread, which shares its work with the pool.
class Trainer {
 public:
  // `config` must be complete and `plan` be made from it; both, and the pool, outlive the trainer.
  // Errors of WindowSampler and HeldOutWindows.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const v1::RunConfig& config,
                                                         const FragmentPlan& plan,
                                                         const Dataset& dataset, int data_slot,
                                                         ThreadPool* pool);

  // From now on, the windows of another part of the data (kOwnData: the data have one part).
  // Errors of WindowSampler.
  absl::Status UseDataSlot(const Dataset& dataset, int data_slot);

  // Forward and backward over a batch of windows, from `first_draw` >= 0 on, and the optimizer's
  // update unless gradients are what is synchronized. OUT_OF_RANGE if the gradient is not finite.
  // `step` >= 1 is the inner step's: it sets the learning rate.
  absl::StatusOr<StepReport> Step(int64_t step, int64_t first_draw);

  // In the plan's arena order.
  std::span<float> parameters() { return parameters_; }
  std::span<const float> gradients() const { return gradients_; }
  InnerOptimizer<float>* optimizer() { return optimizer_.get(); }  // Null: gradients are sent.

  // Mean cross entropy over the held-out windows, of any parameters. Nullopt: nothing is held out.
  absl::StatusOr<std::optional<double>> Evaluate(std::span<const float> parameters);
  // EvaluateChoices with the run's model.
  absl::StatusOr<ChoiceAccuracy> EvaluateTask(
      std::span<const float> parameters, std::span<const ChoiceExample> examples,
      const std::function<bool(int64_t, int64_t)>& progress);

 private:
  Trainer(const v1::RunConfig& config, const FragmentPlan& plan, WindowSampler sampler,
          std::optional<HeldOutWindows> held_out, ThreadPool* pool);

  const v1::RunConfig& config_;
  WindowSampler sampler_;
  const std::optional<HeldOutWindows> held_out_;
  CpuTransformer<float> model_;
  std::unique_ptr<InnerOptimizer<float>> optimizer_;
  std::vector<float> parameters_;
  std::vector<float> gradients_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  std::vector<int32_t> document_starts_;  // Empty without train.document_masking.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_TRAIN_TRAINER_H_
