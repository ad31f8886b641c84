// What the roles of one coordinator share: the run's facts, where it stands, who takes part, and
// how these become durable and are told. Members, rounds, orders and a region's role act on it.
//
// Locks: each FragmentRounds has its own; `mutex` guards membership, sinks and the run's state. The
// two are never held together. Messages to workers are collected under the lock and sent after it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "common/params/sync_schedule.h"
#include "server/core/coordinator.h"
#include "server/core/fragment_rounds.h"
#include "server/core/incident_log.h"
#include "server/outer/outer_optimizer.h"
#include "server/round/membership.h"
#include "server/round/plausibility.h"
#include "server/round/round_policy.h"

namespace causeway::server {

// What a hub and a region have otherwise: decided once, when the run is opened.
struct Tier {
  std::string own_id = {};                // A region's at its parent; empty: the hub's.
  std::vector<std::string> regions = {};  // That it is in, from the hub down, and itself.
  bool under_parent = false;              // It numbers parts of the data, and lets training begin.
  int most_members = 0;
  int start_members = 0;  // Training begins with so many.
  int quorum = 0;
  int64_t tokens = 0;  // The budget that it looks after; 0: none.
  v1::OuterConfig outer = {};
};
Tier TierOf(const Coordinator::Options& options);

struct Run {
  using Sinks = std::map<std::string, std::shared_ptr<SessionSink>>;
  // Messages to be sent when no lock is held.
  using Outbox = std::vector<std::pair<std::shared_ptr<SessionSink>, v1::CoordinatorMessage>>;

  Run(Coordinator::Options options, FragmentPlan plan, Tier tier,
      std::unique_ptr<const OuterOptimizer> optimizer);

  // Keeps the end waiting while a call that may merge is under way.
  class Call {
   public:
    explicit Call(Run& run) : run_(run) {
      absl::MutexLock lock(&run_.mutex);
      ++run_.calls;
    }
    ~Call() {
      absl::MutexLock lock(&run_.mutex);
      --run_.calls;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Run& run_;
  };

  // Every call checks this first.
  absl::Status Serving() const;
  // Stops the coordinator. Returns what everybody is told, callers too: UNAVAILABLE, since a
  // successor may go on; INTERNAL if the training has diverged.
  absl::Status Fail(const absl::Status& status);
  absl::StatusOr<FragmentRounds*> FindFragment(int fragment) const;
  // One for each fragment.
  std::vector<OpenRound> OpenRounds() const;

  // --- Durable ---
  // Make what changed of a member, or of the run, durable. To be called without a lock, after the
  // change and before anybody is told of it. An error has stopped the coordinator.
  absl::Status SaveMember(const std::string& worker_id);
  absl::Status SaveMembers(std::span<const std::string> worker_ids);
  absl::Status SaveRunState();
  v1::RunIdentity Identity() const;
  // Becomes what the store remembers.
  absl::Status Recover(const RecoveredRun& run, const InitialValues& initial);
  bool Maintain();  // Coordinator::Maintain.

  // --- Told ---
  void AddDirective(v1::Directive::Action action, int64_t step, const std::string& reason,
                    const std::string& worker_id, Outbox& outbox) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The same for everybody who is attached.
  void AddDirectives(v1::Directive::Action action, int64_t step, const std::string& reason,
                     Outbox& outbox) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AddRoster(Outbox& outbox) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Adds what a member is told that trains from now on.
  void AddStart(const std::string& id, Outbox& outbox) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  static void Send(const Outbox& outbox);
  void Broadcast(const v1::CoordinatorMessage& message);
  // Sends the worker a notice, if it is attached.
  void Tell(const std::string& worker_id, const std::string& text) ABSL_LOCKS_EXCLUDED(mutex);
  void Record(absl::string_view event, const std::string& message, const nlohmann::json& fields) {
    incidents.Record(event, message, fields);
  }
  // An order that changes the run's state: `change` does that under the lock, and says who is told
  // what. Nothing is done after its error. What it did is durable, and recorded, before it is told.
  absl::Status Order(absl::FunctionRef<absl::Status(Outbox& outbox)> change,
                     absl::string_view event, const std::string& message,
                     const nlohmann::json& fields) ABSL_LOCKS_EXCLUDED(mutex);

  // --- Beginning and end ---
  // Training begins if all are there who have to be. True if it did.
  bool StartIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The step at which every worker stops.
  int64_t EndStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Every round up to the end is published.
  bool RoundsAreDone() const ABSL_LOCKS_EXCLUDED(mutex);
  Coordinator::End Ended(bool rounds_are_done) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Records run_finished, once.
  void NoteIfFinished();
  RoundPolicy PolicyNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // --- Parts of the data ---
  // The draw at which that part goes on; for a region, those of all its parts.
  int64_t NextDraw(const Member& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::vector<int64_t> NextDraws(const Member& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The member's parts are drawn from that step on.
  void GiveParts(const Member& member, int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const Coordinator::Options options;
  const FragmentPlan plan;
  const Tier tier;
  const SyncSchedule schedule;  // Its merge steps are the last ones (tau_max).
  const RoundPolicy policy;     // But for stop_step: see PolicyNow.
  const std::unique_ptr<const OuterOptimizer> optimizer;
  const uint64_t config_hash;
  int64_t epoch = 0;  // Fixed after construction, as the fragments.
  MergePool merge_pool;
  RecentAnswers recent_answers;
  std::unique_ptr<ScratchFile> scratch;  // Null: fragments stay in memory.
  std::vector<std::unique_ptr<FragmentRounds>> fragments;
  std::atomic<int64_t> hash_checks{0};
  std::atomic<int64_t> hash_mismatches{0};

  // Orders writes to the store: whoever holds it writes the newest state. Taken before `mutex`,
  // which is not held while the disk is busy.
  absl::Mutex save_mutex ABSL_ACQUIRED_BEFORE(mutex);
  mutable absl::Mutex mutex;
  Membership membership ABSL_GUARDED_BY(mutex);
  DrawLedger draws ABSL_GUARDED_BY(mutex);
  TokenLedger tokens ABSL_GUARDED_BY(mutex);
  Sinks sinks ABSL_GUARDED_BY(mutex);  // One for each attached member.
  v1::State state ABSL_GUARDED_BY(mutex);
  bool may_start ABSL_GUARDED_BY(mutex);  // Whoever is above has begun.
  bool budget_announced ABSL_GUARDED_BY(mutex) = false;
  // While this process served: somebody left, somebody as finished.
  bool somebody_left ABSL_GUARDED_BY(mutex) = false;
  bool somebody_finished ABSL_GUARDED_BY(mutex) = false;
  bool shut_down ABSL_GUARDED_BY(mutex) = false;
  absl::Status failure ABSL_GUARDED_BY(mutex);
  int calls ABSL_GUARDED_BY(mutex) = 0;  // Under way, of those that may merge.
  IncidentLog incidents;
};

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
