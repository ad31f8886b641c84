// A coordinator between its sites and its parent: what its fragments close goes up, and what the
// parent orders is done.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/params/draws.h"
#include "server/core/coordinator.h"
#include "server/core/fragment_rounds.h"
#include "server/core/run.h"

namespace causeway::server {

// The rounds of a fragment at a region: what its sites contribute becomes one delta for the parent,
// and the parent's answer is what the sites get.
//
// These become durable, in this order: the sites' deltas before they are acknowledged; the region's
// own, as a contribution under the region's id, before it goes up; the parent's answer before a
// site hears of it. A successor merges again what a former process closed, and must come to the
// same bits: what is at the parent is never another delta than the one whose rest is carried.
//
// Theta is what the last delta left out.
class RegionRounds final : public FragmentRounds {
 public:
  // Takes each closed round, without a lock. RESOURCE_EXHAUSTED: the disk has no room for it, and
  // the next Advance tries again.
  using GoUp = std::function<void(RegionRounds& fragment, absl::StatusOr<RegionDelta> delta)>;

  // `id` is the region's at its parent.
  RegionRounds(const Options& options, std::string id, GoUp go_up)
      : FragmentRounds(options), id_(std::move(id)), go_up_(std::move(go_up)) {}

  absl::StatusOr<std::vector<Damaged>> Recover(const History& history) override;
  // Keeps those that the state is folded from.
  absl::Status ForgetAnswers(int64_t before_round) override;
  // The parent's answer to the round that went up: applies, stores and publishes it. DATA_LOSS if
  // it is another one, or does not lead to the parent's hash.
  absl::StatusOr<PublishedRound> AcceptAnswer(ParentAnswer answer);
  // The parent has published that round: nothing is gained by waiting for sites any more.
  void NoteParentVersion(int64_t round);

 private:
  FloatBuffer FirstTheta(const FloatBuffer& published) const override {
    return FloatBuffer(published.size(), 0.0F);
  }
  void Reconsider(const OpenRound& round, Decision& decision) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<PublishedRound>> Finish(ClosedRound closed) override;
  absl::StatusOr<MergeResult> Merge(int64_t round, std::vector<Contribution> contributions,
                                    bool rehearse) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  absl::Status Refold(const v1::Round& round, std::vector<Contribution> contributions) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  // Merges the round, makes it durable, and keeps it until the parent's answer comes.
  absl::StatusOr<RegionDelta> CloseForParent(ClosedRound& closed);
  bool carries_rest() const {
    // The rest of a gradient belongs to weights that are gone.
    return options_.config->sync().contribution() != v1::SyncConfig::GRADIENT;
  }

  const std::string id_;
  const GoUp go_up_;
  // While a round is on its way to the parent: theta after it, and its delta.
  FloatBuffer next_theta_ ABSL_GUARDED_BY(data_mutex_);
  std::optional<ClosedRound> at_parent_ ABSL_GUARDED_BY(data_mutex_);
  SharedBytes sent_ ABSL_GUARDED_BY(data_mutex_);
  // A former process closed the open round with a delta of this hash.
  std::optional<uint64_t> sent_before_ ABSL_GUARDED_BY(mutex_);
  int64_t parent_version_ ABSL_GUARDED_BY(mutex_) = 0;
  // Belongs to rounds that the parent closed without this region: they travel with the next delta.
  int64_t late_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  Draws late_draws_ ABSL_GUARDED_BY(mutex_);
};

class RegionRole final : public Region {
 public:
  RegionRole(Run& run, RoundsImpl& rounds, Parent& parent)
      : run_(run), rounds_(rounds), parent_(parent) {}

  // One for each fragment, in their order.
  std::unique_ptr<FragmentRounds> MakeFragment(const FragmentRounds::Options& options);

  RegionPlace Place() const override;
  absl::Status Begin(int first_slot, const std::vector<int64_t>& next_draws) override;
  absl::Status NoteParentPublished(int fragment, int64_t round) override;
  absl::Status Stop(int64_t step) override;
  void Fail(const absl::Status& why) override;

 private:
  void CarryUp(RegionRounds& fragment, absl::StatusOr<RegionDelta> delta);
  void OnParentAnswer(RegionRounds& fragment, absl::StatusOr<ParentAnswer> answer);

  Run& run_;
  RoundsImpl& rounds_;
  Parent& parent_;
  std::vector<RegionRounds*> fragments_;  // The run's.
};

}  // namespace causeway::server
