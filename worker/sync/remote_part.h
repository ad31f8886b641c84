// A ReplicaPart that another process of the site has: RemotePart is process 0's stand-in for it,
// PartServer what answers in the other process. Over a link go the codes of the other's pieces, its
// leaves, and no values but for checkpoints.
#ifndef CAUSEWAY_WORKER_SYNC_REMOTE_PART_H_
#define CAUSEWAY_WORKER_SYNC_REMOTE_PART_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/group/shard_plan.h"
#include "worker/group/site_link.h"
#include "worker/sync/replica_part.h"
#include "worker/sync/transfer_threads.h"

namespace causeway::worker {

// The methods of PartServer's calls. Others use numbers from kFirstOtherMethod on.
enum PartMethod : int {
  kPartSnapshot = 1,
  kPartFoldLate,
  kPartStageAnswer,
  kPartMerge,
  kPartSetPublished,
  kPartFinishHash,
  kPartMix,
  kPartCopyPublished,
  kPartCopyResiduals,
  kPartRestorePublished,
  kPartRestoreResidual,
  kPartHold,
  kPartCopyHeld,
  kPartSetHeld,
};
inline constexpr int kFirstOtherMethod = 100;

// The places of some ranks' pieces in objects of whole fragments, and the same without gaps.
class PieceBytes {
 public:
  // Ranks from `first_rank` on. Plans outlive it.
  PieceBytes(const FragmentPlan& plan, const ShardPlan& shard_plan, int first_rank, int ranks)
      : plan_(plan), shard_plan_(shard_plan), first_rank_(first_rank), ranks_(ranks) {}

  // Packs this part's pieces of a fragment in that codec; as fp32 where it is null.
  ByteBuffer Pack(const Codec* codec, int fragment, std::span<const uint8_t> object) const;
  // INVALID_ARGUMENT for another length than Pack makes.
  absl::Status Unpack(const Codec* codec, int fragment, std::span<const uint8_t> packed,
                      std::span<uint8_t> object) const;
  // Packs this part's pieces of all fragments, in arena order by rank, as fp32.
  ByteBuffer PackArena(std::span<const float> arena) const;
  absl::Status UnpackArena(std::span<const uint8_t> packed, std::span<float> arena) const;
  size_t ObjectBytes(const Codec* codec, int fragment) const;

 private:
  // Calls `copy` with the place in the object and in the packed bytes, and the size, of every
  // piece; returns the size of all.
  template <typename Copy>
  size_t ForEach(const Codec* codec, int fragment, const Copy& copy) const;

  const FragmentPlan& plan_;
  const ShardPlan& shard_plan_;
  const int first_rank_;
  const int ranks_;
};

class RemotePart final : public ReplicaPart {
 public:
  // The ranks of the process at the other end of the link. Link and plans outlive the part.
  RemotePart(SiteLink& link, const FragmentPlan& plan, const ShardPlan& shard_plan,
             const v1::SyncConfig& sync, int first_rank, int ranks);

  absl::StatusOr<std::unique_ptr<Codes>> Snapshot(int fragment) override;
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object) override;
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer) override;
  absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha) override;
  absl::Status SetPublished(int fragment, std::span<const uint8_t> values) override;
  absl::Status FinishHash(int fragment, LeafSink& leaves) override;
  absl::Status Mix(int fragment, float alpha) override;
  absl::Status Hold(int fragment) override;
  absl::Status CopyHeld(int fragment, std::span<float> values) override;
  absl::Status SetHeld(int fragment, std::span<const float> values) override;
  absl::Status CopyPublished(std::span<float> arena) override;
  bool KeepsResiduals() const override { return keeps_residuals_; }
  absl::Status CopyResiduals(std::span<float> arena) override;
  absl::Status Restore(std::span<const float> published, std::span<const float> residual) override;

 private:
  class RemoteCodes;

  SiteLink& link_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const PieceBytes pieces_;
  bool keeps_residuals_;
  std::map<int, uint64_t> merges_;  // Calls that were not waited for, by fragment.
  absl::Mutex mutex_;
  std::set<int> staged_ ABSL_GUARDED_BY(mutex_);
};

// Answers the calls of a RemotePart with a part of this process.
class PartServer {
 public:
  // All outlive the server.
  PartServer(SiteLink& link, ReplicaPart& part, const FragmentPlan& plan,
             const ShardPlan& shard_plan, const v1::SyncConfig& sync, int first_rank, int ranks);

  // For SiteLink::Start: what need not wait for the training thread.
  bool HandleAtOnce(SiteCall& call);
  // On the training thread, at a step boundary. An error is that of the link: what goes wrong with
  // the part is the answer. INVALID_ARGUMENT is answered to unknown methods.
  absl::Status Handle(SiteCall& call);

 private:
  absl::StatusOr<ByteBuffer> Do(SiteCall& call);
  absl::Status Snapshot(const SiteCall& call);

  SiteLink& link_;
  ReplicaPart& part_;
  const FragmentPlan& plan_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const PieceBytes pieces_;
  std::vector<float> restored_;  // The published copy, until the residual comes.
  TransferThreads threads_;      // Wait for codes. Last.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_REMOTE_PART_H_
