// The roles of a coordinator (coordinator.h), as they act on its run: orders, rounds, members.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/core/coordinator.h"
#include "server/core/run.h"

namespace causeway::server {

// The role that takes an operator's orders, and gives those that follow from the members' speeds.
class OrdersImpl final : public Orders {
 public:
  explicit OrdersImpl(Run& run) : run_(run) {}

  absl::Status Pause(const std::string& reason) override;
  absl::Status Resume() override;
  absl::Status Drain(const std::string& worker_id) override;
  absl::Status Reject(const v1::RejectRequest& order) override;
  absl::Status StopAtStep(int64_t step) override;
  absl::Status StopAtTokens(int64_t tokens) override;
  v1::InvitationList Invitations() const override;
  absl::Status KeepInvitations(const v1::InvitationList& list) override;

  // Acts on the speeds that were just reported: other paces, or the end of the token budget. Call
  // it without a lock; sends and records.
  absl::Status ActOnProgress();

 private:
  int64_t TokenBudget() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);

  Run& run_;
};

// The role that takes deltas and gives answers, and brings rounds from open to published.
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

  Run& run_;
};

// Implausible values count as unknown.
Progress ProgressOf(const v1::Heartbeat& heartbeat);

// The role that takes what workers say in their sessions.
class MembersImpl final : public Members {
 public:
  MembersImpl(Run& run, OrdersImpl& orders) : run_(run), orders_(orders) {}

  absl::StatusOr<v1::Welcome> Join(const v1::Join& join,
                                   std::shared_ptr<SessionSink> sink) override;
  absl::Status Handle(const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override;
  void Disconnected(const std::string& worker_id, uint64_t incarnation,
                    const absl::Status& why) override;

 private:
  absl::Status CheckJoin(const v1::Join& join) const;
  // The first worker that shares the data says which they are; refuses those who have others.
  // `changed`: it did.
  absl::Status CheckSharedData(const v1::Join& join, bool& changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);
  absl::StatusOr<v1::Welcome> Admit(const v1::Join& join, std::shared_ptr<SessionSink> sink);
  absl::Status HandleReady(const std::string& worker_id, uint64_t incarnation,
                           const v1::Ready& ready);
  absl::Status HandleHeartbeat(const std::string& worker_id, uint64_t incarnation,
                               const v1::Heartbeat& heartbeat);
  absl::Status HandleApplied(const std::string& worker_id, uint64_t incarnation,
                             const v1::Applied& applied);
  absl::Status HandleLeave(const std::string& worker_id, uint64_t incarnation,
                           const v1::Leave& leave);
  absl::Status CheckStep(int64_t step) const;
  // A step that the member can have reached, too.
  absl::Status CheckReached(const std::string& worker_id, int64_t step) const;
  // The last step after which a delta was sent that is published.
  int64_t PublishedStep(const std::vector<OpenRound>& open_rounds) const;
  // The largest step that the run has come to, with those that are likely to be done since the last
  // heartbeats.
  int64_t StepByNow(const std::vector<OpenRound>& open_rounds) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);
  // Whom the earliest open round lacks that the worker has contributed to; empty: none does.
  std::string WaitsFor(const std::string& worker_id,
                       const std::vector<OpenRound>& open_rounds) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_.mutex);

  Run& run_;
  OrdersImpl& orders_;
};

}  // namespace causeway::server
