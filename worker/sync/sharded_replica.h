// A replica whose values are divided over the devices of a site.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/replica.h"

namespace causeway::worker {

// Computes the tree hash of a fragment whose bytes lie in several places. Each place hashes the
// leaves that it holds whole, and hands over its bytes of the others.

// Says what a place hashes and what it hands over, for its range of a fragment's bytes.
struct LeafRanges {
  // `begin` .. `end` of `total` bytes.
  LeafRanges(int64_t begin, int64_t end, int64_t total);

  int64_t first_leaf = 0;  // The first leaf that lies in the range as a whole,
  int64_t leaves = 0;      // and the number of these.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<Range> shared;  // The rest: parts of leaves before and behind. At most two.
};

// Takes what places hash and hand over.
class LeafSink {
 public:
  virtual ~LeafSink() = default;
  virtual void SetLeaf(int64_t leaf, uint64_t checksum) = 0;
  // Bytes of shared leaves, from `offset` on.
  virtual void AddShared(int64_t offset, std::span<const uint8_t> bytes) = 0;
};

class LeafAssembly final : public LeafSink {
 public:
  explicit LeafAssembly(int64_t bytes);

  void SetLeaf(int64_t leaf, uint64_t checksum) override;
  void AddShared(int64_t offset, std::span<const uint8_t> bytes) override;
  // Returns the TreeHash of all bytes. Every leaf must have been set or added whole.
  uint64_t Root();

 private:
  const int64_t bytes_;
  std::vector<uint64_t> checksums_;
  std::map<int64_t, std::vector<uint8_t>> shared_;  // Whole leaves, by number.
};

// What a part of a divided replica is asked to do: the verbs of Replica (replica.h). The numbers
// are those of calls between processes (remote_part.h). Others use numbers from kFirstOtherMethod
// on.
enum PartMethod : int {
  kPartSnapshot = 1,  // Of Snapshot.
  kPartFoldLate,
  kPartStageAnswer,
  kPartMerge,
  kPartSetPublished,
  kPartFinishHash,  // Of FinishHash.
  kPartMix,
  kPartCopyPublished,
  kPartCopyResiduals,
  kPartRestorePublished,
  kPartRestoreResidual,
  kPartHold,
  kPartCopyHeld,
  kPartSetHeld,
  kPartCopyLocal,  // Local values of a fragment, which a DevicePart leaves to whoever has them.
  kPartSetLocal,
  kPartCopyGaps,  // The same of what lies between tensors, gap after gap.
  kPartSetGaps,
};
inline constexpr int kFirstOtherMethod = 100;

// A verb with what it takes and gives: objects, answers and values of whole fragments, or arenas. A
// part reads and writes its own pieces' places in them.
struct PartCall {
  PartMethod method;
  int fragment = 0;  // Of those that are about one.
  float alpha = 0;   // Of Merge and Mix.
  std::span<const uint8_t> in = {};
  std::span<uint8_t> out = {};
};

// A part of a replica that is divided over several devices: the shards of one or more ranks of a
// ShardPlan. ShardedReplica makes one replica of all parts. Threads and errors are Replica's.
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
  // Every other verb. Merge and SetPublished begin to hash what they make of the published copy.
  virtual absl::Status Do(const PartCall& call) = 0;
  // Begins what Do does, so that others can be asked meanwhile. What is left is to be called once,
  // while what the call refers to is there; null: nothing is.
  using Rest = std::function<absl::Status()>;
  virtual absl::StatusOr<Rest> Begin(const PartCall& call) {
    const absl::Status done = Do(call);
    return done.ok() ? absl::StatusOr<Rest>(Rest()) : done;
  }
  // Says that FinishHash comes next, so that others can be asked meanwhile.
  virtual absl::Status AskForHash(int /*fragment*/) { return absl::OkStatus(); }
  // Waits for the leaves of whichever of the two began last.
  virtual absl::Status FinishHash(int fragment, LeafSink& leaves) = 0;
  // Whether FinishHash would not wait.
  virtual bool IsHashed(int /*fragment*/) { return true; }
  virtual bool KeepsResiduals() const = 0;
  // The published arena, where this part has all of it in ordinary memory.
  virtual std::span<const float> WholePublished() const { return {}; }
};

// Values as they lie in memory.
inline std::span<const uint8_t> BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}
inline std::span<uint8_t> MutableBytesOf(std::span<float> values) {
  return {reinterpret_cast<uint8_t*>(values.data()), values.size_bytes()};
}
inline std::span<const float> FloatsOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
inline std::span<float> FloatsOf(std::span<uint8_t> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

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
  absl::StatusOr<std::span<const float>> Published() override;
  absl::StatusOr<State> Save() override;
  absl::Status Restore(State state) override;

  // Has all parts do it, at once; the first error.
  absl::Status Do(const PartCall& call);

 private:
  class ShardedDelta;

  const FragmentPlan& plan_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const std::vector<std::unique_ptr<ReplicaPart>> parts_;
  std::vector<float> published_;  // The last copy that was asked for, of several parts.
};

}  // namespace causeway::worker
