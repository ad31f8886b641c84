// One process's part of a replica that is divided over several devices: the shards of one or more
// ranks of a ShardPlan. ShardedReplica (sharded_replica.h) makes one replica of all parts.
//
// The calls, their threads and their errors are Replica's (replica.h). Objects, answers and states
// are those of whole fragments: a part reads and writes its own pieces' places in them.
#ifndef CAUSEWAY_WORKER_SYNC_REPLICA_PART_H_
#define CAUSEWAY_WORKER_SYNC_REPLICA_PART_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/sync/leaf_assembly.h"

namespace causeway::worker {

class ReplicaPart {
 public:
  // The codes of one snapshot.
  class Codes {
   public:
    virtual ~Codes() = default;
    // Once, on any thread; blocks it until they are there.
    virtual absl::Status Read(std::span<uint8_t> object) = 0;
  };

  virtual ~ReplicaPart() = default;

  virtual absl::StatusOr<std::unique_ptr<Codes>> Snapshot(int fragment) = 0;
  virtual absl::Status FoldLate(int fragment, std::span<const uint8_t> object) = 0;
  virtual absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer) = 0;
  // Begins the merge, and hashing what it makes of the published copy.
  virtual absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha) = 0;
  // Sets the published copy, and begins to hash it, too.
  virtual absl::Status SetPublished(int fragment, std::span<const uint8_t> values) = 0;
  // Waits for the leaves of whichever of the two began last.
  virtual absl::Status FinishHash(int fragment, LeafSink& leaves) = 0;
  // Whether FinishHash would not wait.
  virtual bool IsHashed(int /*fragment*/) { return true; }
  virtual absl::Status Mix(int fragment, float alpha) = 0;
  virtual absl::Status Hold(int fragment) = 0;
  // To and from the values of the whole fragment.
  virtual absl::Status CopyHeld(int fragment, std::span<float> values) = 0;
  virtual absl::Status SetHeld(int fragment, std::span<const float> values) = 0;

  // To and from arenas.
  virtual absl::Status CopyPublished(std::span<float> arena) = 0;
  virtual bool KeepsResiduals() const = 0;
  virtual absl::Status CopyResiduals(std::span<float> arena) = 0;
  // `residual` may be empty.
  virtual absl::Status Restore(std::span<const float> published,
                               std::span<const float> residual) = 0;
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_REPLICA_PART_H_
