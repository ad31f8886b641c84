// The narrow seam between synchronization and what it synchronizes: the local replica's values, the
// published copy, and what error feedback keeps of them, wherever these are.
//
// SyncEngine decides what is done when; a replica does it, fragment by fragment. All
// implementations give the same bits. A replica serves one engine from its construction on:
// published copy and residuals begin as zeros.
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
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
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

// Upper bound on the bytes of deltas and answers in flight.
size_t ObjectBytesInFlight(const FragmentPlan& plan, const v1::SyncConfig& sync);

class Replica {
 public:
  // A fragment's delta, as it was at Snapshot.
  class Delta {
   public:
    virtual ~Delta() = default;
    // Once, on any thread; blocks it. The replica is still there.
    virtual absl::StatusOr<EncodedObject> Encode() = 0;
  };

  virtual ~Replica() = default;

  // Takes the delta of the published copy and the local values, or the gradient of the step just
  // done, before clipping (data parallelism), and what error feedback adds.
  virtual absl::StatusOr<std::unique_ptr<Delta>> Snapshot(int fragment) = 0;

  // Adds a delta whose round closed without it to what error feedback keeps. It was encoded against
  // the published copy of now. Not for gradients.
  virtual absl::Status FoldLate(int fragment, std::span<const uint8_t> object) = 0;

  // Tells that the answer of the fragment's round has come. Merge will be called with the same
  // bytes, which stay: a replica may bring them to where it needs them.
  virtual absl::Status StageAnswer(int /*fragment*/, std::span<const uint8_t> /*answer*/) {
    return absl::OkStatus();
  }

  // Applies an answer to the published copy and, as Mix does, the published copy to the local
  // values.
  virtual absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha) = 0;
  // Returns the hash (TreeHash) of the published copy after the last Merge, which may be computed
  // beside a step. Once after every Merge, before the next Merge, Snapshot or SetPublished of the
  // fragment.
  virtual absl::StatusOr<uint64_t> FinishMerge(int fragment) = 0;
  // Whether FinishMerge would not wait for it.
  virtual bool IsMerged(int /*fragment*/) { return true; }

  // Makes the published copy what `values` says, fp32 in little endian, as many as the fragment
  // has. Returns its hash.
  virtual absl::StatusOr<uint64_t> SetPublished(int fragment, std::span<const uint8_t> values) = 0;
  // local = alpha * local + (1 - alpha) * published; exactly published where alpha is 0. Where
  // local values are held, local = published + keep_in_flight * (local - held) instead, in double
  // and rounded once, and they are let go.
  virtual absl::Status Mix(int fragment, float alpha) = 0;

  // With sync.keep_in_flight, beside every Snapshot: holds the local values of now until the
  // fragment's next Merge or Mix.
  virtual absl::Status Hold(int fragment) = 0;
  // Reads the held values of a fragment for a checkpoint, and sets them: as many as it has.
  virtual absl::StatusOr<std::vector<float>> Held(int fragment) = 0;
  virtual absl::Status SetHeld(int fragment, std::span<const float> values) = 0;

  // Returns the published copy, in arena order. The values stay as they are until the next call of
  // any method.
  virtual absl::StatusOr<std::span<const float>> Published() = 0;

  // The part of a checkpoint, in arena order; `residual` is empty if nothing is kept. Call it when
  // no delta is left to encode.
  struct State {
    std::vector<float> published;
    std::vector<float> residual;
  };
  virtual absl::StatusOr<State> Save() = 0;
  // Restores a replica that has done nothing yet. Both parts have the right sizes. The caller
  // restores the local values.
  virtual absl::Status Restore(State state) = 0;
};

}  // namespace causeway::worker
