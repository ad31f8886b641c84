// One site's training between synchronizations: the data, and the backend that trains on them.
// Knows nothing of devices, rounds, fragments in flight or the network.
//
// Step is a pure function of (weights, moments, counters, data): a trainer that continues with the
// same ones repeats bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/data/dataset.h"
#include "worker/data/window_sampler.h"
#include "worker/sync/backend.h"

namespace causeway::worker {

// Mean cross entropy over the windows, in nats per token. `targets`, unless null, receives the
// number of tokens that were predicted. Errors of HeldOutWindows::Read and of the model's device.
absl::StatusOr<double> EvaluateLoss(EvaluationModel& model, std::span<const float> parameters,
                                    const HeldOutWindows& windows, int64_t* targets = nullptr);

// Not thread-safe: one training thread.
class Trainer {
 public:
  // `config` must be complete and outlive the trainer; `backend` must be made for it. Errors of
  // WindowSampler and HeldOutWindows.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const v1::RunConfig& config,
                                                         const Dataset& dataset, int data_slot,
                                                         std::unique_ptr<TrainingBackend> backend);

  // From now on, the windows of another part of the data (kOwnData: the data have one part).
  // Errors of WindowSampler.
  absl::Status UseDataSlot(const Dataset& dataset, int data_slot);

  // The backend's step over a batch of windows, from `first_draw` >= 0 on.
  absl::StatusOr<StepReport> Step(int64_t step, int64_t first_draw);

  TrainingBackend& backend() { return *backend_; }

  // Mean cross entropy over the held-out windows, of any parameters. Nullopt: nothing is held out.
  absl::StatusOr<std::optional<double>> Evaluate(std::span<const float> parameters);

 private:
  Trainer(const v1::RunConfig& config, WindowSampler sampler,
          std::optional<HeldOutWindows> held_out, std::unique_ptr<TrainingBackend> backend);

  const v1::RunConfig& config_;
  WindowSampler sampler_;
  const std::optional<HeldOutWindows> held_out_;
  const std::unique_ptr<TrainingBackend> backend_;
};

}  // namespace causeway::worker
