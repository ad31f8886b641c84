// The narrow seam between synchronization and what it synchronizes: the local replica's values, the
// published copy, and what error feedback keeps of them, wherever these are. HostReplica
// has them in ordinary memory.
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

#include <atomic>
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

// Encodes as codec.Encode does, into an object of its own, with Encode's errors. Each leaf's
// checksum is taken while its codes are in a cache. To read the whole object again would take a
// quarter of the time that loopback needs to carry it.
absl::StatusOr<EncodedObject> EncodeObject(const Codec& codec, std::span<const float> base,
                                           std::span<const float> target,
                                           const ErrorFeedback& feedback);

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

// A replica in ordinary memory: the reference for all others.

class HostReplica final : public Replica {
 public:
  // `sync` is complete. The plan and both arenas outlive the replica; `gradients` may be empty
  // unless they are what is contributed.
  HostReplica(const FragmentPlan& plan, const v1::SyncConfig& sync, std::span<float> parameters,
              std::span<const float> gradients);

  absl::StatusOr<std::unique_ptr<Delta>> Snapshot(int fragment) override;
  absl::Status FoldLate(int fragment, std::span<const uint8_t> object) override;
  // Decodes and hashes for Merge, which then only copies and mixes. At most kMostStaged fragments
  // wait so, as each takes 4 bytes per value. Merge decodes the others.
  absl::Status StageAnswer(int fragment, std::span<const uint8_t> answer) override;
  absl::Status Merge(int fragment, std::span<const uint8_t> answer, float alpha) override;
  absl::StatusOr<uint64_t> FinishMerge(int fragment) override;
  absl::StatusOr<uint64_t> SetPublished(int fragment, std::span<const uint8_t> values) override;
  absl::Status Mix(int fragment, float alpha) override;
  absl::Status Hold(int fragment) override;
  absl::StatusOr<std::vector<float>> Held(int fragment) override { return held(fragment); }
  absl::Status SetHeld(int fragment, std::span<const float> values) override;
  absl::StatusOr<std::span<const float>> Published() override { return published_; }
  absl::StatusOr<State> Save() override;
  absl::Status Restore(State state) override;

 private:
  class HostDelta;
  // In blocks that are used again (byte_buffer.h).
  using Values = std::vector<float, UninitializedAllocator<float>>;
  struct Staged {
    Values published;   // The copy after the answer; empty: nothing is staged.
    uint64_t hash = 0;  // Its hash, until FinishMerge asks for it.
  };
  static constexpr int kMostStaged = 2;

  template <typename T>
  std::span<T> Part(std::span<T> arena, int fragment) const;
  std::span<float> PublishedPart(int fragment) { return Part(std::span(published_), fragment); }
  // The fragment's residual; empty until something is kept.
  std::vector<float>& residual(int fragment) { return residuals_[static_cast<size_t>(fragment)]; }
  std::vector<float>& held(int fragment) { return held_[static_cast<size_t>(fragment)]; }
  // Mix, of a published copy that is `staged` first, unless that is empty.
  void PublishAndMix(int fragment, std::span<const float> staged, float alpha);
  // The residual, of zeros if there was none.
  std::span<float> EnsureResidual(int fragment);

  const FragmentPlan& plan_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  const float decay_;
  const double keep_;
  const bool contributes_gradients_;
  const std::span<float> parameters_;
  const std::span<const float> gradients_;
  std::vector<float> published_;
  std::vector<float> zeros_;  // The base of gradients, as long as the largest fragment.
  std::vector<std::vector<float>> residuals_;
  std::vector<std::vector<float>> held_;  // By fragment; empty: nothing.
  std::vector<Staged> staged_;            // By fragment.
  std::atomic<int> staged_count_ = 0;
};

}  // namespace causeway::worker
