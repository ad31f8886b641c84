// A replica whose values are divided over the devices of a site.
#ifndef CAUSEWAY_WORKER_SYNC_SHARDED_REPLICA_H_
#define CAUSEWAY_WORKER_SYNC_SHARDED_REPLICA_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/replica.h"
#include "worker/sync/replica_part.h"

namespace causeway::worker {

class ShardedReplica final : public Replica {
 public:
  // The parts together have all ranks of one ShardPlan of `plan`, which outlives the replica.
  ShardedReplica(const FragmentPlan& plan, const v1::SyncConfig& sync,
                 std::vector<std::unique_ptr<ReplicaPart>> parts);

  absl::StatusOr<std::unique_ptr<Delta>> Snapshot(int fragment) override;
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object) override;
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer) override;
  absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha) override;
  absl::StatusOr<uint64_t> FinishMerge(int fragment) override;
  bool IsMerged(int fragment) override;
  absl::StatusOr<uint64_t> SetPublished(int fragment, std::span<const uint8_t> values) override;
  absl::Status Mix(int fragment, float alpha) override;
  absl::Status Hold(int fragment) override;
  absl::StatusOr<std::vector<float>> Held(int fragment) override;
  absl::Status SetHeld(int fragment, std::span<const float> values) override;
  // Copies all of it to the host.
  absl::StatusOr<std::span<const float>> Published() override;
  absl::StatusOr<State> Save() override;
  absl::Status Restore(State state) override;

 private:
  class ShardedDelta;

  int64_t FragmentBytes(int fragment) const;
  absl::StatusOr<uint64_t> FinishHash(int fragment);

  const FragmentPlan& plan_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const std::vector<std::unique_ptr<ReplicaPart>> parts_;
  std::vector<float> published_;  // The last copy that was asked for.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_SHARDED_REPLICA_H_
