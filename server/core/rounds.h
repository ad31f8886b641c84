// The role that takes deltas and gives answers (coordinator.h), as it acts on its run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/core/coordinator.h"
#include "server/core/run.h"

namespace causeway::server {

// Brings rounds from open to published, too.
class RoundsImpl final : public Rounds {
 public:
  explicit RoundsImpl(Run& run) : run_(run) {}

  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                            RoundClosed closed) override;
  std::vector<double> MeasureLeaf(int fragment, int64_t round, int64_t leaf,
                                  std::span<const uint8_t> bytes) const override;
  absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& claimed,
                                              ReceivedObject object) override;
  void MergeDue(int fragment) override;
  void PullAnswer(int fragment, int64_t round, PullCallback callback) override;
  absl::StatusOr<std::shared_ptr<const PullObject>> PullState(int fragment) override;
  void RecordPulled(const std::string& worker_id, v1::Want::Object object, int64_t bytes) override;

  // Closes and publishes whatever rounds of the fragment are due.
  void Advance(FragmentRounds& fragment);
  // Tells everybody of a round that is published.
  void Announce(const PublishedRound& round);

 private:
  Run& run_;
};

}  // namespace causeway::server
