// A worker's membership in a run, apart from who trains: join, session, link, exchange and
// synchronization, the coordinator's orders, and what it hears and shows of the worker.
//
//   ASSIGN_OR_RETURN(ReachedRun run, ReachRun(options));   // which is it?
//   ASSIGN_OR_RETURN(auto member, RunMember::Create(options, std::move(run), files, clock));
//   RETURN_IF_ERROR(member->OpenTelemetry());
//   RETURN_IF_ERROR(member->Attach(who, place));
//   RETURN_IF_ERROR(member->Begin(hooks, place));
//   member->Ready();
//   for (;;) {
//     ASSIGN_OR_RETURN(const RunMember::Turn turn, member->NextTurn(absl::Seconds(1)));
//     ... kFinished and kDrain end it; kTrain: one inner step, which ends at member->NextStep() ...
//     ASSIGN_OR_RETURN(bool goes_on, member->StepDone(step));
//     member->report().Step(member->standing(), figures);
//   }
//   RETURN_IF_ERROR(member->Finish(drained));
//   member->Leave(drained);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/client/grpc_exchange.h"
#include "common/client/link.h"
#include "common/client/session.h"
#include "common/params/fragment_plan.h"
#include "common/transfer/wire.h"
#include "worker/member/joining.h"
#include "worker/member/merge_record.h"
#include "worker/member/run_report.h"
#include "worker/member/run_telemetry.h"
#include "worker/member/wait_watch.h"
#include "worker/sync/sync_engine.h"

namespace causeway::worker {

// One training thread calls everything, but for CancelExchange and session().
class RunMember {
 public:
  // Where a former process of this worker was.
  using Place = TrainingPlace;

  // The trainer's work for the membership, on the training thread.
  struct Hooks {
    // A new one each time: a worker that starts anew begins with another.
    std::function<absl::StatusOr<std::unique_ptr<Replica>>()> make_replica;
    // Makes the local values those that belong to the place, before it is continued from.
    std::function<absl::Status()> restore_parameters;
    // Draws that part of the data, or kOwnData, from now on.
    std::function<absl::Status(int part)> use_data_part;
    // Something changed that a successor must know of: another part of the data.
    std::function<absl::Status()> checkpoint;
    // The published values replaced the local ones. Ready is to be said, after a checkpoint.
    std::function<absl::Status()> started_anew;
    // A fragment was merged, at any time. May be empty.
    std::function<void(const SyncEvent& event)> merged;
    // Called some times a second while training waits for an answer. May be empty.
    std::function<void()> meanwhile;
  };

  // The worker's description for the coordinator.
  struct Description {
    std::string device;
    std::string software = kSoftwareVersion;
    uint64_t data_fingerprint = 0;  // 0: not known.
  };

  enum class Turn {
    kWait,      // Not started, paused, or nothing was heard: ask again.
    kTrain,     // One inner step.
    kAnew,      // Began anew: ask again.
    kFinished,  // The budget is spent, or the step at which to stop is reached.
    kDrain,
  };

  // One inner step that was done.
  struct Step {
    int64_t tokens = 0;
    int64_t draws = 0;
    absl::Duration time;  // Without synchronization.
  };

  // Checks whatever can be refused before a join.
  static absl::StatusOr<std::unique_ptr<RunMember>> Create(const MemberOptions& options,
                                                           ReachedRun reached,
                                                           FileSystem& file_system, Clock& clock);
  ~RunMember();
  RunMember(const RunMember&) = delete;
  RunMember& operator=(const RunMember&) = delete;

  // Serves the metrics, if they were asked for.
  absl::Status OpenTelemetry();
  // Waits until the coordinator welcomes this worker. `place` may be null.
  absl::Status Attach(const Description& description, const Place* place);
  // Continues from `place`, or from the published state where there is none or it is too old. After
  // an error the worker has left: drained, if CancelExchange was called.
  absl::Status Begin(Hooks hooks, std::optional<Place> place);

  // Says that this worker takes part from here on.
  void Ready();
  // Waits up to `timeout` for what is to be done next, obeying what else was ordered.
  absl::StatusOr<Turn> NextTurn(absl::Duration timeout);
  // The step at which the next inner step ends.
  int64_t NextStep() const { return counter_.Next(end_); }
  // Sends and merges what is due. False: the run went on without this worker, which began anew.
  absl::StatusOr<bool> StepDone(const Step& step);
  // What this worker tells of its training: member->report().Step(member->standing(), figures).
  RunReport& report() { return report_; }
  RunReport::Standing standing() const;
  // Saves the place from which a successor continues.
  absl::StatusOr<Place> Save();

  // Hands over the deltas in flight if `drained`, otherwise waits for all rounds and merges them.
  absl::Status Finish(bool drained);
  void Leave(bool drained);
  // Leaves with an error, of which it returns the cause: the session's own failure if that has one.
  // `silently`: the coordinator is not told, but will notice.
  absl::Status Fail(absl::Status status, bool silently);
  // All that waits for the exchange, or will, returns CANCELLED. Any thread.
  void CancelExchange();

  const v1::DescribeResponse& run() const { return reached_.run; }
  const v1::RunConfig& config() const { return reached_.run.config(); }
  const FragmentPlan& plan() const { return plan_; }
  RunTelemetry& telemetry() { return *telemetry_; }
  Session& session() { return *session_; }
  SyncEngine& sync() { return *sync_; }
  int64_t step() const { return counter_.step(); }
  int64_t first_step() const { return report_.first_step(); }
  int64_t end_step() const { return end_; }
  int data_slot() const { return data_slot_; }
  // The name of this worker's part in the record of draws.
  int DataPart() const { return options_.own_data ? kOwnData : data_slot_; }
  // Begun from the published state, not from a former process's place.
  bool anew() const { return anew_; }
  // Continues from a place whose part of the data is not its own any more.
  bool took_other_part() const { return took_other_part_; }

 private:
  RunMember(const MemberOptions& options, ReachedRun reached, FragmentPlan plan,
            FileSystem& file_system, Clock& clock);

  absl::Status Continue(std::optional<Place> place);
  std::shared_ptr<Link> MakeLink();
  // With sync.max_overlap_steps. `anew`: there is no place to continue from.
  absl::Status OpenMergeRecord(bool anew);
  // An exchange and an engine that have seen nothing yet.
  absl::Status MakeSync();
  // Takes the published state and goes on where the run is, drawing from `next_draw` on.
  absl::Status StartAnew(int data_slot, int64_t next_draw);
  // Fetches it, and returns the step to go on from.
  absl::StatusOr<int64_t> FetchPublished();
  // Draws another part of the data if the coordinator says so.
  absl::Status ObeyDataSlot(const Session::Orders& orders);
  void ObeyPace(const Session::Orders& orders);
  // The log of one that has left, or cannot go on, is at its end.
  void SaysNoMore();

  const MemberOptions options_;
  const ReachedRun reached_;
  FileSystem& file_system_;
  Clock& clock_;
  const FragmentPlan plan_;
  Hooks hooks_;
  RunReport report_;
  std::unique_ptr<RunTelemetry> telemetry_;  // The session's and the engine's, so before them.
  std::unique_ptr<WaitWatch> wait_watch_;    // Likewise.
  std::unique_ptr<Session> session_;
  std::shared_ptr<Link> link_;  // To the coordinator that the session is with.
  // Replaced by MakeSync, on the training thread alone; others cancel it, under the mutex.
  mutable absl::Mutex exchange_mutex_;
  std::shared_ptr<GrpcExchange> exchange_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<SyncEngine> sync_;
  std::unique_ptr<MergeRecord> merge_record_;   // Null: the overlap does not give way.
  std::vector<RecordedMerge> recorded_merges_;  // To be repeated.
  int data_slot_ = 0;
  bool anew_ = true;
  bool took_other_part_ = false;
  bool has_values_ = true;  // False while the published state is on its way.
  std::atomic<bool> left_ = false;
  StepCounter counter_;
  int64_t end_ = 0;  // The schedule's end, for now.
};

}  // namespace causeway::worker
