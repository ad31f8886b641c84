// A backend whose weights and moments are divided over the devices of a site, of which this process
// has some: ranks of one ShardPlan. All processes of the site call the same methods in the same
// order; their devices find each other by themselves. SiteBackend (site_backend.h) makes one
// backend of all of them.
//
// Where a TrainingBackend speaks of the whole arena, this one reads and writes its own pieces
// alone. A step's report has the loss and the tokens of its own micro-batches, weighted so that the
// sum over the processes is the step's; `read` is asked for these by their numbers in the step.
// MakeReplica needs all ranks to be here.
#ifndef CAUSEWAY_WORKER_TRAIN_SHARDED_BACKEND_H_
#define CAUSEWAY_WORKER_TRAIN_SHARDED_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/group/shard_plan.h"
#include "worker/sync/replica_part.h"
#include "worker/train/backend.h"
#include "worker/train/step_tokens.h"

namespace causeway::worker {

class ShardedBackend : public TrainingBackend {
 public:
  virtual const ShardPlan& shards() const = 0;
  // Those of this process.
  virtual RankRange range() const = 0;
  // For a new SyncEngine, after the former part is gone. Lives no longer than the backend.
  virtual absl::StatusOr<std::unique_ptr<ReplicaPart>> MakePart() = 0;
  // The next step begins by making the weights that it computes with from the master weights: on
  // all processes, after one has used its own for an evaluation.
  virtual void RefreshWeights() = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_TRAIN_SHARDED_BACKEND_H_
