// A replica whose parts are in several processes of a site: RemotePart is process 0's stand-in for
// those of another one, PartServer what answers there. Over a link go the codes of the other's
// pieces, its leaves, and no values but for checkpoints. Processes are ranks of a trainer of its
// own (site_ranks.h), or those of causeway-worker with their GPUs (site_backend.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/process_link.h"
#include "worker/sync/replica.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker {

// Calls of process 0 beside the verbs of a part (PartMethod).
enum ReplicaMethod : int {
  kReplicaMake = 50,  // New parts, of nothing; local values stay.
  kReplicaSettle,     // Answered when all before it has been done.
};

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

// Ranks of another process, as process 0 sees them.
struct RemoteRanks {
  SiteLink* link = nullptr;
  PieceBytes pieces;
};

// Sends a call to each, with what `bytes` makes for it, does `own` meanwhile, and waits for all
// answers; `take` gets them in order. All three may be null. Returns the first error, which names
// the process.
using BytesFor = std::function<ByteBuffer(size_t other)>;
using TakeFrom = std::function<absl::Status(size_t other, const ByteBuffer& answer)>;
absl::Status CallAll(std::span<const RemoteRanks> others, int method, int64_t argument = 0,
                     const BytesFor& bytes = nullptr,
                     const std::function<absl::Status()>& own = nullptr,
                     const TakeFrom& take = nullptr);

// Makes the parts of a process anew, of nothing. Local values stay, former parts are gone.
using MakeParts = std::function<absl::StatusOr<std::vector<std::unique_ptr<ReplicaPart>>>()>;

// A replica of process 0's parts and those of the others, which all make theirs at the same time.
absl::StatusOr<std::unique_ptr<Replica>> MakeDividedReplica(const FragmentPlan& plan,
                                                            const v1::SyncConfig& sync,
                                                            const MakeParts& make_own,
                                                            std::span<const RemoteRanks> others);

// Answers the calls of MakeDividedReplica, and of the RemotePart that it makes, with parts of this
// process.
class PartServer {
 public:
  // The link outlives the server. There are no parts before Make. `pieces` are those of all parts.
  PartServer(SiteLink& link, const PieceBytes& pieces, MakeParts make)
      : link_(link), pieces_(pieces), make_(std::move(make)) {}
  ~PartServer() { Drop(); }

  // Makes the parts, as kReplicaMake does.
  absl::Status Make();
  // Ends what is done beside the training thread, and destroys the parts.
  void Drop();

  // For SiteLink::Start: what need not wait for the training thread.
  bool HandleAtOnce(SiteCall& call);
  // On the training thread, at a step boundary. An error is that of the link: what goes wrong with
  // a part is the answer. INVALID_ARGUMENT is answered to unknown methods.
  absl::Status Handle(SiteCall& call);

 private:
  absl::Status HandlePart(SiteCall& call) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ByteBuffer> Do(const SiteCall& call) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status Snapshot(const SiteCall& call) ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  SiteLink& link_;
  const PieceBytes pieces_;
  const MakeParts make_;
  absl::Mutex mutex_;  // Guards which parts there are.
  std::vector<std::unique_ptr<ReplicaPart>> parts_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WorkQueue> threads_ ABSL_GUARDED_BY(mutex_);  // Wait for codes of the parts.
};

}  // namespace causeway::worker
