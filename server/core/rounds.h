// The role that takes deltas and gives answers, and brings rounds from open to published.
#ifndef CAUSEWAY_SERVER_CORE_ROUNDS_H_
#define CAUSEWAY_SERVER_CORE_ROUNDS_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/core/coordinator.h"
#include "server/core/run.h"

namespace causeway::server {

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
  absl::Status CheckPush(const v1::PushHeader& header) const;
  struct DroppedDraws {
    int foreign = 0;  // Ranges of parts of the data that the worker never had.
    int ahead = 0;    // Ranges that go on beyond what it can have trained; cut there.
  };
  // Takes out of the header what cannot be.
  DroppedDraws DropImpossibleDraws(const FragmentRounds& fragment, v1::PushHeader& header) const
      ABSL_LOCKS_EXCLUDED(run_.mutex);
  // Lowers the header's tokens to what its worker can have trained. Returns what it claimed.
  int64_t CutTokens(const FragmentRounds& fragment, v1::PushHeader& header) const
      ABSL_LOCKS_EXCLUDED(run_.mutex);
  void BroadcastOutcome(const v1::Round& record);

  Run& run_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_ROUNDS_H_
