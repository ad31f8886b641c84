// The narrow seam between synchronization and what it synchronizes: the local replica's values, the
// published copy, and what error feedback keeps of them, wherever these are: a replica is made of
// parts, which devices and processes of a site have.
//
// SyncEngine decides what is done when; a replica does it, fragment by fragment. All parts give the
// same bits. A replica serves one engine from its construction on: published copy and residuals
// begin as zeros.
//
// Thread-safety: one training thread calls everything at step boundaries. Delta::Encode and
// StageAnswer alone are called by the engine's own threads, while the training thread may be at
// other fragments or in a step. From Snapshot until its Encode has returned, only Published and Mix
// happen to the fragment.
//
// Errors: INVALID_ARGUMENT for values or bytes that a codec refuses, as in codec.h; others are the
// device's. After an error the fragment is unspecified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "causeway/v1/site.pb.h"
#include "common/base/byte_buffer.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"

namespace causeway::worker {

// A delta, encoded, with the checksums that its transfer needs.
struct EncodedObject {
  ByteBuffer bytes;
  std::vector<uint64_t> leaves;  // LeafChecksums(bytes).
};

// Whether what lies between tensors moves as the values of its block do: these alone are to make a
// scale that is a mean, of a delta and of the answer that follows from it.
bool MirrorsGaps(const Codec& up, const Codec& down);
// Makes it so. All arrays begin at `begin` of the arena and are equally long; `residual` may be
// empty.
void MirrorIntoGaps(const FragmentPlan& plan, int64_t begin, std::span<const float> base,
                    std::span<float> target, std::span<float> residual);

// Makes local values what a merge or Mix (below) makes of them. `held` is empty, or holds theirs.
void MixValues(std::span<const float> published, std::span<const float> held, double keep_in_flight,
               float alpha, std::span<float> local);

// Upper bound on the bytes of deltas and answers in flight, and of a fragment's values beside them:
// a part copies these to encode and to decode.
size_t ObjectBytesInFlight(const FragmentPlan& plan, const v1::SyncConfig& sync);

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
  void SetLeaf(int64_t leaf, uint64_t checksum);
  // Bytes of shared leaves, from `offset` on.
  void AddShared(int64_t offset, std::span<const uint8_t> bytes);
  // Gives what was taken so far, and takes what another sink took.
  const v1::SiteLeaves& taken() const { return taken_; }
  void Take(const v1::SiteLeaves& more) { taken_.MergeFrom(more); }
  // Returns the TreeHash of all `bytes` bytes. Every leaf must have been set or added whole.
  // DATA_LOSS for one that lies beyond them.
  absl::StatusOr<uint64_t> Root(int64_t bytes) const;

 private:
  v1::SiteLeaves taken_;
};

// Numbers the verbs that a part of a divided replica is asked for: those of Replica. The numbers
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
// ShardPlan. A Replica is made of all parts. Threads and errors are Replica's.
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

class Replica {
 public:
  // A fragment's delta, as it was at Snapshot.
  class Delta {
   public:
    // `codes` of all parts, which take `bytes` together.
    Delta(size_t bytes, std::vector<std::unique_ptr<ReplicaPart::Codes>> codes)
        : bytes_(bytes), codes_(std::move(codes)) {}
    // Once, on any thread; blocks it. The replica is still there.
    absl::StatusOr<EncodedObject> Encode();

   private:
    const size_t bytes_;
    const std::vector<std::unique_ptr<ReplicaPart::Codes>> codes_;
  };

  // The parts together have all ranks of one ShardPlan of `plan`, which outlives the replica.
  Replica(const FragmentPlan& plan, const v1::SyncConfig& sync,
          std::vector<std::unique_ptr<ReplicaPart>> parts);

  // Takes the delta of the published copy and the local values, or the gradient of the step just
  // done, before clipping (data parallelism), and what error feedback adds.
  absl::StatusOr<std::unique_ptr<Delta>> Snapshot(int fragment);

  // Adds a delta whose round closed without it to what error feedback keeps. It was encoded against
  // the published copy of now. Not for gradients.
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object);

  // Tells that the answer of the fragment's round has come. Merge will be called with the same
  // bytes, which stay: a replica may bring them to where it needs them.
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer);

  // Applies an answer to the published copy and, as Mix does, the published copy to the local
  // values.
  absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha);
  // Returns the hash (TreeHash) of the published copy after the last Merge, which may be computed
  // beside a step. Once after every Merge, before the next Merge, Snapshot or SetPublished of the
  // fragment.
  absl::StatusOr<uint64_t> FinishMerge(int fragment);
  // Whether FinishMerge would not wait for it.
  bool IsMerged(int fragment);

  // Makes the published copy what `values` says, fp32 in little endian, as many as the fragment
  // has. Returns its hash.
  absl::StatusOr<uint64_t> SetPublished(int fragment, std::span<const uint8_t> values);
  // local = alpha * local + (1 - alpha) * published; exactly published where alpha is 0. Where
  // local values are held, local = published + keep_in_flight * (local - held) instead, in double
  // and rounded once, and they are let go.
  absl::Status Mix(int fragment, float alpha);

  // With sync.keep_in_flight, beside every Snapshot: holds the local values of now until the
  // fragment's next Merge or Mix.
  absl::Status Hold(int fragment);
  // Reads the held values of a fragment for a checkpoint, and sets them: as many as it has.
  absl::StatusOr<std::vector<float>> Held(int fragment);
  absl::Status SetHeld(int fragment, std::span<const float> values);

  // Returns the published copy, in arena order. The values stay as they are until the next call of
  // any method.
  absl::StatusOr<std::span<const float>> Published();

  // The part of a checkpoint, in arena order; `residual` is empty if nothing is kept. Call it when
  // no delta is left to encode.
  struct State {
    std::vector<float> published;
    std::vector<float> residual;
  };
  absl::StatusOr<State> Save();
  // Restores a replica that has done nothing yet. Both parts have the right sizes. The caller
  // restores the local values.
  absl::Status Restore(State state);

  // Has all parts do it, at once; the first error.
  absl::Status Do(const PartCall& call);

 private:
  const FragmentPlan& plan_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const std::vector<std::unique_ptr<ReplicaPart>> parts_;
  std::vector<float> published_;  // The last copy that was asked for, of several parts.
};

}  // namespace causeway::worker
