// The implementation behind coordinator.h.
//
// Locks: each FragmentRounds has its own; members_mutex_ guards membership, sinks and the run's
// state. The two are never held together. Messages to workers are collected under the lock and
// sent after it.
#ifndef CAUSEWAY_SERVER_CORE_COORDINATOR_IMPL_H_
#define CAUSEWAY_SERVER_CORE_COORDINATOR_IMPL_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/params/sync_schedule.h"
#include "server/core/coordinator.h"
#include "server/core/fragment_rounds.h"
#include "server/core/incident_log.h"
#include "server/core/run_summary.h"
#include "server/outer/outer_optimizer.h"
#include "server/round/draw_ledger.h"
#include "server/round/membership.h"
#include "server/round/plausibility.h"
#include "server/round/round_policy.h"

namespace causeway::server {

// Implausible values count as unknown.
Progress ProgressOf(const v1::Heartbeat& heartbeat);

class CoordinatorImpl final : public Coordinator {
 public:
  static absl::StatusOr<std::unique_ptr<CoordinatorImpl>> Create(Options options);

  const v1::RunConfig& config() const override { return options_.config; }
  const FragmentPlan& plan() const override { return plan_; }
  const std::string& run_id() const override { return options_.run_id; }
  v1::DescribeResponse Describe() const override;

  absl::StatusOr<v1::Welcome> Join(const v1::Join& join,
                                   std::shared_ptr<SessionSink> sink) override;
  absl::Status Handle(const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message) override;
  void Disconnected(const std::string& worker_id, uint64_t incarnation,
                    const absl::Status& why) override;

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

  absl::StatusOr<RegionPlace> Place() const override;
  absl::Status BeginUnderParent(int first_slot, const std::vector<int64_t>& next_draws) override;
  absl::Status NoteParentPublished(int fragment, int64_t round) override;
  absl::Status StopUnderParent(int64_t step) override;
  absl::Status FailUnderParent(const absl::Status& why) override;

  void Tick() override;
  bool Maintain() override;

  v1::RunStatus GetStatus() const override;
  absl::Status Pause(const std::string& reason) override;
  absl::Status Resume() override;
  absl::Status Drain(const std::string& worker_id) override;
  absl::Status Reject(const v1::RejectRequest& order) override;
  absl::Status StopAtStep(int64_t step) override;
  absl::Status StopAtTokens(int64_t tokens) override;
  bool ReachedItsEnd() const override;
  bool Finished() const override;
  absl::Status Health() const override;
  absl::Status Shutdown() override;
  std::vector<float> PublishedParameters() const override;

 private:
  using Sinks = std::map<std::string, std::shared_ptr<SessionSink>>;
  // Messages to be sent when no lock is held.
  using Outbox = std::vector<std::pair<std::shared_ptr<SessionSink>, v1::CoordinatorMessage>>;

  CoordinatorImpl(Options options, FragmentPlan plan,
                  std::unique_ptr<const OuterOptimizer> optimizer);

  // Makes the fragments, without values.
  absl::Status MakeFragments();
  // Becomes what the store remembers.
  absl::Status Recover(const RecoveredRun& run, const InitialValues& initial);
  absl::Status RecoverFragments(const RecoveredRun& run, const InitialValues& initial);
  v1::RunIdentity Identity() const;
  // The first worker that shares the data says which they are; refuses those who have others.
  // `changed`: it did.
  absl::Status CheckSharedData(const v1::Join& join, bool& changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // The draw at which that part of the data goes on; for a region, those of all its parts.
  int64_t NextDraw(const Member& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  std::vector<int64_t> NextDraws(const Member& member) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // The member's parts of the data are drawn from that step on.
  void GiveParts(const Member& member, int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  bool region() const { return options_.region.has_value(); }
  std::string RegionId() const { return region() ? options_.region->id : std::string(); }
  // Training begins if all are there who have to be. True if it did.
  bool StartIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // Adds what a member is told that trains from now on.
  void AddStart(const std::string& id, Outbox& outbox) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // Takes what a region's fragment has closed to its parent.
  void CarryUp(FragmentRounds& fragment);
  void OnParentAnswer(FragmentRounds& fragment, absl::StatusOr<ParentAnswer> answer);
  // Make what changed of a member, or of the run, durable. To be called without a lock, after the
  // change and before anybody is told of it. An error has stopped the coordinator.
  absl::Status SaveMember(const std::string& worker_id);
  absl::Status SaveMembers(std::span<const std::string> worker_ids);
  absl::Status SaveRunState();
  // Those that lack most rounds first, until a second has passed. One that finds no room is passed
  // over. Returns whether others were due still.
  absl::StatusOr<bool> SaveDueSnapshots();
  absl::Status ForgetOldAnswers();

  // Keeps Shutdown waiting while a call that may merge is under way.
  class Call {
   public:
    explicit Call(CoordinatorImpl& owner) : owner_(owner) {
      absl::MutexLock lock(&owner_.members_mutex_);
      ++owner_.calls_;
    }
    ~Call() {
      absl::MutexLock lock(&owner_.members_mutex_);
      --owner_.calls_;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CoordinatorImpl& owner_;
  };

  absl::Status CheckJoin(const v1::Join& join) const;
  absl::StatusOr<v1::Welcome> Admit(const v1::Join& join, std::shared_ptr<SessionSink> sink);
  absl::Status CheckPush(const v1::PushHeader& header) const;
  struct DroppedDraws {
    int foreign = 0;  // Ranges of parts of the data that the worker never had.
    int ahead = 0;    // Ranges that go on beyond what it can have trained; cut there.
  };
  // Takes out of the header what cannot be.
  DroppedDraws DropImpossibleDraws(const FragmentRounds& fragment, v1::PushHeader& header) const
      ABSL_LOCKS_EXCLUDED(members_mutex_);
  // Lowers the header's tokens to what its worker can have trained. Returns what it claimed.
  int64_t CutTokens(const FragmentRounds& fragment, v1::PushHeader& header) const
      ABSL_LOCKS_EXCLUDED(members_mutex_);
  absl::StatusOr<FragmentRounds*> FindFragment(int fragment) const;
  // One for each fragment.
  std::vector<OpenRound> OpenRounds() const;
  // Every call checks this first.
  absl::Status Serving() const;

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
  // Acts on the speeds that were just reported: other paces, or the end of the token budget. Call
  // it without a lock; sends and records.
  absl::Status ActOnProgress();
  int64_t TokenBudget() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);

  // Closes and publishes whatever rounds of the fragment are due.
  void Advance(FragmentRounds& fragment);
  void Announce(const PublishedRound& round);
  void BroadcastOutcome(const v1::Round& record);
  // Stops the coordinator. Returns what everybody is told, callers too: UNAVAILABLE, since a
  // successor may go on; INTERNAL if the training has diverged.
  absl::Status Fail(const absl::Status& status);

  void AddDirective(v1::Directive::Action action, int64_t step, const std::string& reason,
                    const std::string& worker_id, Outbox& outbox) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  void AddRoster(Outbox& outbox) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  void Broadcast(const v1::CoordinatorMessage& message);
  static void Send(const Outbox& outbox);
  // The step at which every worker stops.
  int64_t EndStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // Every round up to the end is published.
  bool RoundsAreDone() const ABSL_LOCKS_EXCLUDED(members_mutex_);
  RoundPolicy PolicyNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  bool ReachedItsEndLocked(bool rounds_are_done) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  bool FinishedLocked(bool rounds_are_done) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // The last step after which a delta was sent that is published.
  int64_t PublishedStep(const std::vector<OpenRound>& open_rounds) const;
  // The largest step that the run has come to, with those that are likely to be done since the last
  // heartbeats.
  int64_t StepByNow(const std::vector<OpenRound>& open_rounds) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // Whom the earliest open round lacks that the worker has contributed to; empty: none does.
  std::string WaitsFor(const std::string& worker_id,
                       const std::vector<OpenRound>& open_rounds) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(members_mutex_);
  // Sends the worker a notice, if it is attached.
  void Tell(const std::string& worker_id, const std::string& text)
      ABSL_LOCKS_EXCLUDED(members_mutex_);
  // Records run_finished, once.
  void NoteIfFinished();
  void Record(absl::string_view event, const std::string& message, const nlohmann::json& fields) {
    incidents_.Record(event, message, fields);
  }
  RunSummary Summarize() const;

  const Options options_;
  const FragmentPlan plan_;
  const SyncSchedule schedule_;  // Its merge steps are the last ones (tau_max).
  const RoundPolicy policy_;     // But for stop_step: see PolicyNow.
  const std::unique_ptr<const OuterOptimizer> optimizer_;
  const uint64_t config_hash_;
  int64_t epoch_ = 0;  // Fixed after construction.
  MergePool merge_pool_;
  RecentAnswers answers_;
  std::unique_ptr<ScratchFile> scratch_;                    // Null: fragments stay in memory.
  std::vector<std::unique_ptr<FragmentRounds>> fragments_;  // Fixed after construction.
  std::atomic<int64_t> hash_checks_{0};
  std::atomic<int64_t> hash_mismatches_{0};

  // Orders writes to the store: whoever holds it writes the newest state. Taken before
  // members_mutex_, which is not held while the disk is busy.
  absl::Mutex save_mutex_ ABSL_ACQUIRED_BEFORE(members_mutex_);
  mutable absl::Mutex members_mutex_;
  Membership membership_ ABSL_GUARDED_BY(members_mutex_);
  DrawLedger draws_ ABSL_GUARDED_BY(members_mutex_);
  TokenLedger tokens_ ABSL_GUARDED_BY(members_mutex_);
  std::map<std::string, v1::Member> accounts_ ABSL_GUARDED_BY(members_mutex_);
  Sinks sinks_ ABSL_GUARDED_BY(members_mutex_);  // One for each attached member.
  v1::State state_ ABSL_GUARDED_BY(members_mutex_);
  bool parent_started_ ABSL_GUARDED_BY(members_mutex_) = false;  // A region's parent has begun.
  bool budget_announced_ ABSL_GUARDED_BY(members_mutex_) = false;
  // While this process served: somebody left, somebody as finished.
  bool somebody_left_ ABSL_GUARDED_BY(members_mutex_) = false;
  bool somebody_finished_ ABSL_GUARDED_BY(members_mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(members_mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(members_mutex_);
  int calls_ ABSL_GUARDED_BY(members_mutex_) = 0;  // Under way, of those that may merge.
  IncidentLog incidents_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_COORDINATOR_IMPL_H_
