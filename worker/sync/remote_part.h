// The ReplicaParts that another process of the site has: RemotePart is process 0's stand-in for
// them, PartServer what answers in the other process. Over a link go the codes of the other's
// pieces, its leaves, and no values but for checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/process_link.h"
#include "worker/sync/shard_plan.h"
#include "worker/sync/sharded_replica.h"

namespace causeway::worker {

// What a call takes or gives besides numbers, for whole fragments or arenas.
enum class PartData { kNone, kCodesUp, kCodesDown, kFragment, kGaps, kArena };

// The places of some ranks' pieces in what is whole, and the same without gaps: what travels.
class PieceBytes {
 public:
  // Ranks from `first_rank` on. Plans outlive it.
  PieceBytes(const FragmentPlan& plan, const ShardPlan& shard_plan, const v1::SyncConfig& sync,
             int first_rank, int ranks);

  // Packs these ranks' pieces; values are fp32. Of an arena in order of fragments.
  ByteBuffer Pack(PartData data, int fragment, std::span<const uint8_t> whole) const;
  // INVALID_ARGUMENT for another length than Pack makes.
  absl::Status Unpack(PartData data, int fragment, std::span<const uint8_t> packed,
                      std::span<uint8_t> whole) const;
  ByteBuffer PackArena(std::span<const float> arena) const {
    return Pack(PartData::kArena, 0, BytesOf(arena));
  }
  absl::Status UnpackArena(std::span<const uint8_t> packed, std::span<float> arena) const {
    return Unpack(PartData::kArena, 0, packed, MutableBytesOf(arena));
  }
  size_t WholeBytes(PartData data, int fragment) const;
  int fragments() const { return plan_.fragments(); }

 private:
  // Calls `copy` with the place in the whole and in the packed bytes, and the size, of every piece;
  // returns the size of all.
  template <typename Copy>
  size_t ForEach(PartData data, int fragment, const Copy& copy) const;
  size_t BytesOfValues(PartData data, int64_t values) const;

  const FragmentPlan& plan_;
  const ShardPlan& shard_plan_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const int first_rank_;
  const int ranks_;
};

class RemotePart final : public ReplicaPart {
 public:
  // The ranks of the process at the other end of the link, `pieces`. The link outlives the part.
  RemotePart(SiteLink& link, const PieceBytes& pieces, const v1::SyncConfig& sync)
      : link_(link), pieces_(pieces), keeps_residuals_(sync.error_feedback()) {}

  absl::StatusOr<std::unique_ptr<Codes>> Snapshot(int fragment) override;
  absl::Status Do(const PartCall& call) override;
  absl::StatusOr<Rest> Begin(const PartCall& call) override;
  absl::Status AskForHash(int fragment) override;
  absl::Status FinishHash(int fragment, LeafSink& leaves) override;
  bool KeepsResiduals() const override { return keeps_residuals_; }

 private:
  class RemoteCodes;

  absl::StatusOr<Rest> BeginMerge(const PartCall& call);

  SiteLink& link_;
  const PieceBytes pieces_;
  bool keeps_residuals_;
  std::map<int, uint64_t> merges_;  // Calls that were not waited for, by fragment.
  uint64_t hash_call_ = 0;          // Of AskForHash.
  absl::Mutex mutex_;
  std::set<int> staged_ ABSL_GUARDED_BY(mutex_);
};

// Answers the calls of a RemotePart with the parts of this process.
class PartServer {
 public:
  // All outlive the server. `pieces` are those of all parts.
  PartServer(SiteLink& link, std::span<const std::unique_ptr<ReplicaPart>> parts,
             const PieceBytes& pieces);
  ~PartServer() { threads_.Drop(); }

  // For SiteLink::Start: what need not wait for the training thread.
  bool HandleAtOnce(SiteCall& call);
  // On the training thread, at a step boundary. An error is that of the link: what goes wrong with
  // a part is the answer. INVALID_ARGUMENT is answered to unknown methods.
  absl::Status Handle(SiteCall& call);

 private:
  absl::StatusOr<ByteBuffer> Do(const SiteCall& call);
  absl::Status Snapshot(const SiteCall& call);

  SiteLink& link_;
  const std::span<const std::unique_ptr<ReplicaPart>> parts_;
  const PieceBytes pieces_;
  WorkQueue threads_;  // Wait for codes. Last.
};

}  // namespace causeway::worker
