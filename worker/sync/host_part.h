// One rank's part of a replica, in ordinary memory (replica.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/replica.h"
#include "worker/sync/shard_plan.h"

namespace causeway::worker {

// An array of zeros of which only what is written takes memory, in pages.
class SparseArena {
 public:
  // RESOURCE_EXHAUSTED. `is_whole`: all of it is going to be written.
  static absl::StatusOr<SparseArena> Create(int64_t values, bool is_whole);
  SparseArena() = default;
  ~SparseArena();
  SparseArena(SparseArena&& other) noexcept { *this = std::move(other); }
  SparseArena& operator=(SparseArena&& other) noexcept {
    std::swap(values_, other.values_);
    return *this;
  }
  std::span<float> values() const { return values_; }

 private:
  std::span<float> values_;
};

// Threads are Replica's.
class HostPart final : public ReplicaPart {
 public:
  // `sync` is complete. Plans and arenas outlive the part, which reads and writes the own pieces;
  // `gradients` may be empty unless they are what is contributed. `untrained`: ranges that nobody
  // trains, in arena order. What is published of them is what is local, whenever they are sent or
  // merged. Two answers are decoded when they come, each into 4 bytes per value; merges decode the
  // others. Those of other ranks than 0, whose PartServer needs all staged, are all decoded then.
  static absl::StatusOr<std::unique_ptr<HostPart>> Create(const FragmentPlan& plan,
                                                          const ShardPlan& shard_plan, int rank,
                                                          const v1::SyncConfig& sync,
                                                          std::span<float> parameters,
                                                          std::span<const float> gradients,
                                                          std::span<const FragmentRange> untrained);

  absl::StatusOr<std::unique_ptr<Codes>> Snapshot(int fragment) override;
  absl::Status Do(const PartCall& call) override;
  absl::Status FinishHash(int fragment, LeafSink& leaves) override;
  bool KeepsResiduals() const override;
  std::span<const float> WholePublished() const override {
    return shard_plan_.ranks() == 1 ? published() : std::span<const float>();
  }

  // The arena, of which the own pieces are the published copy.
  std::span<float> published() const { return published_.values(); }

 private:
  friend absl::StatusOr<std::unique_ptr<Replica>> MakeHostReplica(const FragmentPlan&,
                                                                  const v1::SyncConfig&,
                                                                  std::span<float>,
                                                                  std::span<const float>);
  class HostCodes;
  // Values of a fragment's pieces, one after the other.
  using Values = FloatBuffer;
  struct Fragment {
    std::span<const ShardPiece> pieces;
    std::vector<FragmentRange> untrained;  // Of the pieces.
    Values staged;                         // The published copy after the answer that has come.
    std::vector<float> held;
    std::vector<float> residual;  // Of the pieces; empty until something is kept.
    LeafSink leaves;              // Of the copy that `staged` is, or else of the last one.
  };

  HostPart(const FragmentPlan& plan, const ShardPlan& shard_plan, int rank,
           const v1::SyncConfig& sync, std::span<float> parameters,
           std::span<const float> gradients);

  Fragment& fragment(int number) { return fragments_[static_cast<size_t>(number)]; }
  size_t Size(int fragment) const {
    return static_cast<size_t>(shard_plan_.shard_size(rank_, fragment));
  }
  // Calls `body` with each piece, its first value's place among the fragment's own, and its bytes
  // among the fragment's codes.
  template <typename Body>
  absl::Status ForEach(int fragment, const Codec& codec, const Body& body);
  void KeepResidual(int fragment);
  std::span<float> Residual(const ShardPiece& piece);
  void FillUntrained(int fragment);
  void Hash(int fragment, std::span<const float> values);
  absl::Status Apply(int fragment, std::span<const uint8_t> answer, std::span<float> values);
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object);
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer);
  absl::Status Merge(const PartCall& call);
  // Mix, of a published copy that is `values` first, unless that is empty.
  void PublishAndMix(int fragment, std::span<const float> values, float alpha);
  // A copy of the arena's.
  Values Copy(int fragment, std::span<const float> arena);

  std::unique_ptr<const ShardPlan> whole_;  // What `shard_plan_` is, of one rank alone.
  const FragmentPlan& plan_;
  const ShardPlan& shard_plan_;
  const int rank_;
  const Codec& codec_up_;
  const Codec& codec_down_;
  const float decay_;
  const double keep_;
  const int most_staged_;
  const bool contributes_gradients_;
  const std::span<float> parameters_;
  const std::span<const float> gradients_;
  std::vector<float> zeros_;  // The base of gradients, as long as the largest piece.
  SparseArena published_;
  std::vector<Fragment> fragments_;
  std::atomic<int> staged_count_ = 0;
};

// A replica in ordinary memory, of one rank that has everything: the reference for all others.
// Arguments as HostPart's. RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<Replica>> MakeHostReplica(const FragmentPlan& plan,
                                                         const v1::SyncConfig& sync,
                                                         std::span<float> parameters,
                                                         std::span<const float> gradients);

// A rank's local values in ordinary memory, and the parts that it makes for them.
class HostShare {
 public:
  // Plans outlive it. Arguments as HostPart's.
  static absl::StatusOr<std::unique_ptr<HostShare>> Create(const FragmentPlan& plan,
                                                           const ShardPlan& shard_plan, int rank,
                                                           const v1::SyncConfig& sync,
                                                           std::vector<FragmentRange> untrained);

  // A new one, of nothing; the local values stay. It does not outlive this.
  absl::StatusOr<std::unique_ptr<ReplicaPart>> MakePart();

  // Whole arenas, of which the own pieces count; the second of the last part.
  std::span<float> arena() const { return arena_.values(); }
  // FAILED_PRECONDITION if that was not made.
  absl::StatusOr<std::span<const float>> published() const;

 private:
  HostShare(const FragmentPlan& plan, const ShardPlan& shard_plan, int rank,
            const v1::SyncConfig& sync, std::vector<FragmentRange> untrained)
      : plan_(plan),
        shard_plan_(shard_plan),
        rank_(rank),
        sync_(sync),
        untrained_(std::move(untrained)) {}

  const FragmentPlan& plan_;
  const ShardPlan& shard_plan_;
  const int rank_;
  const v1::SyncConfig sync_;
  const std::vector<FragmentRange> untrained_;
  SparseArena arena_;
  HostPart* part_ = nullptr;
};

}  // namespace causeway::worker
