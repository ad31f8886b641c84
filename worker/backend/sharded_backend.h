// A process's part of a site's backend: weights and moments are divided over the devices of the
// site, and this process has some of them, ranks of one ShardPlan. SiteBackend
// (site/site_backend.h) makes one TrainingBackend of the process's own part and the others'.
#ifndef CAUSEWAY_WORKER_BACKEND_SHARDED_BACKEND_H_
#define CAUSEWAY_WORKER_BACKEND_SHARDED_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/backend/evaluation_model.h"
#include "worker/backend/step_tokens.h"
#include "worker/group/shard_plan.h"
#include "worker/sync/replica_part.h"

namespace causeway::worker {

// All processes of a site call the same methods in the same order; their devices find each other by
// themselves. Spans of parameters are arenas, of which the own pieces alone are read and written.
// Not thread-safe.
class ShardedBackend {
 public:
  virtual ~ShardedBackend() = default;
  virtual const ShardPlan& shards() const = 0;
  // Those of this process.
  virtual RankRange range() const = 0;

  // As TrainingBackend::Step, of the own micro-batches: `read` is asked for them by their numbers
  // in the step. Loss and tokens are weighted so that the sum over the processes is the step's.
  virtual absl::StatusOr<StepReport> Step(int64_t step, const MicroBatchReader& read) = 0;

  // As TrainingBackend's.
  virtual absl::Status SetParameters(std::span<const float> parameters) = 0;
  virtual absl::Status CopyParameters(std::span<float> parameters) = 0;
  virtual absl::StatusOr<OptimizerState> SaveOptimizer() = 0;
  virtual absl::Status RestoreOptimizer(int64_t updates, std::span<const float> first_moments,
                                        std::span<const float> second_moments) = 0;

  // Makes the own part of the replica: for a new SyncEngine, after the former part is gone. Lives
  // no longer than the backend.
  virtual absl::StatusOr<std::unique_ptr<ReplicaPart>> MakePart() = 0;
  // The next step begins by making the weights that it computes with from the master weights.
  virtual void RefreshWeights() = 0;

  // Evaluates whole arenas on the own devices, without the other processes. After its UseParameters
  // all of them refresh their weights. Lives as long as the backend.
  virtual EvaluationModel& evaluation() = 0;

  // As TrainingBackend's, of the own devices.
  virtual std::string Describe() const = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_SHARDED_BACKEND_H_
