// The seam between a trainer and the devices that it trains on: weights, gradients and optimizer
// state lie behind it, on CPU cores (cpu/cpu_backend.h), on GPUs (cuda/cuda_backend.h), in one
// process or several (site_backend.h).
//
// Step is a pure function of (weights, optimizer state, counters, data): a backend that continues
// with the same ones repeats bit for bit. Nothing here knows of rounds or the network;
// synchronization reaches the weights through the Replica.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/sync/replica.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker {

struct OptimizerReport {
  double gradient_norm = 0;  // Before clipping.
  double learning_rate = 0;  // AdamW's.
  bool clipped = false;
};

struct StepReport {
  double loss = 0;  // Mean cross entropy of the step's windows, nats per token.
  int64_t tokens = 0;
  int64_t draws = 0;                      // Windows.
  std::optional<OptimizerReport> update;  // Empty where gradients are what is synchronized.
};

// [micro_batch_sequences, sequence_length] each, as CpuTransformer::ForwardBackward takes them.
struct MicroBatch {
  std::span<int32_t> inputs;
  std::span<int32_t> targets;
  std::span<int32_t> document_starts;  // Empty without train.document_masking.
};

// Fills micro-batch `index` of the step, 0 .. batch_sequences / micro_batch_sequences - 1. Called
// by the thread that called Step, in order.
using MicroBatchReader = std::function<absl::Status(int64_t index, const MicroBatch& out)>;

struct OptimizerState {
  int64_t updates = 0;
  // In arena order; empty where gradients are what is synchronized.
  std::vector<float> first_moments;
  std::vector<float> second_moments;
};

// A model whose losses can be asked for, on whatever device it lies.

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
};

// Weights and optimizer state that are trained: a whole model's, or a process's part of a site's.
// Not thread-safe: one training thread. Spans of parameters are in the plan's arena order, of
// plan.arena_size() values.
class StepBackend {
 public:
  virtual ~StepBackend() = default;

  // Forward and backward over all micro-batches of a step, and the optimizer's update unless
  // gradients are what is synchronized. `step` >= 1 is the inner step's: it sets the learning rate.
  // OUT_OF_RANGE if the gradient is not finite: nothing has changed then. Errors of `read`. An
  // error of the device is final.
  virtual absl::StatusOr<StepReport> Step(int64_t step, const MicroBatchReader& read) = 0;

  // The master weights.
  virtual absl::Status SetParameters(std::span<const float> parameters) = 0;
  virtual absl::Status CopyParameters(std::span<float> parameters) = 0;

  virtual absl::StatusOr<OptimizerState> SaveOptimizer() = 0;
  // Takes what SaveOptimizer returned. INVALID_ARGUMENT, and nothing has changed, if the moments
  // have another length.
  virtual absl::Status RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                        std::span<const float> second_moments) = 0;

  // The device's name in a join and a report: "cpu, 8 threads".
  virtual std::string Describe() const = 0;
};

class TrainingBackend : public EvaluationModel, public StepBackend {
 public:
  // Makes synchronization's view of the weights: a new one for every SyncEngine, after the former
  // one is gone. Lives no longer than the backend.
  virtual absl::StatusOr<std::unique_ptr<Replica>> MakeReplica() = 0;
};

// A process's part of a site's backend: weights and moments are divided over the devices of the
// site, and this process has some of them, ranks of one ShardPlan. SiteBackend
// (site_backend.h) makes one TrainingBackend of the process's own part and the others'.
//
// All processes of a site call the same methods in the same order; their devices find each other by
// themselves. Spans of parameters are arenas, of which the own pieces alone are read and written.
// Step asks `read` for the own micro-batches by their numbers in the step; loss and tokens are
// weighted so that the sum over the processes is the step's.
class ShardedBackend : public StepBackend {
 public:
  virtual const ShardPlan& shards() const = 0;
  // Those of this process.
  virtual RankRange range() const = 0;

  // Makes the own parts of the replica: for a new SyncEngine, after the former parts are gone. They
  // live no longer than the backend.
  virtual absl::StatusOr<std::vector<std::unique_ptr<ReplicaPart>>> MakeParts() = 0;
  // The next step begins by making the weights that it computes with from the master weights.
  virtual void RefreshWeights() = 0;

  // Evaluates whole arenas on the own devices, without the other processes. After its UseParameters
  // all of them refresh their weights. Lives as long as the backend.
  virtual EvaluationModel& evaluation() = 0;
};

}  // namespace causeway::worker
