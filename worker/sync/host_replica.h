// A replica in ordinary memory: the reference for all others.
#ifndef CAUSEWAY_WORKER_SYNC_HOST_REPLICA_H_
#define CAUSEWAY_WORKER_SYNC_HOST_REPLICA_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/base/byte_buffer.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "worker/sync/replica.h"

namespace causeway::worker {

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

#endif  // CAUSEWAY_WORKER_SYNC_HOST_REPLICA_H_
