// A site whose trainer is its own: a member of a run over an arena in ordinary memory, or over the
// trainer's tensors on devices. What causeway_site.h offers, in C++; its contracts hold here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/client/boarding.h"
#include "common/params/sync_schedule.h"
#include "nlohmann/json.hpp"
#include "worker/member/run_member.h"
#include "worker/site/site_values.h"
#include "worker/sync/site_ranks.h"

namespace causeway::worker {

struct SiteJoin {
  // `stop` is asked by any thread until Join returns, and ends all of it.
  MemberOptions member;
  RunMember::Description description;
  absl::Duration drain_timeout = absl::Seconds(20);
  std::shared_ptr<IdentityKeeper> keeper;  // Null: the certificates are somebody else's to renew.
  // The trainer's tensors on devices; none: values cross in the arena.
  std::optional<DeviceOptions> device;
  // Writes the initial values of that tensor, as many as it has, or returns false to give up.
  // Empty: this site cannot bring the model.
  std::function<bool(size_t tensor, std::span<float> values)> initial_values;
  // The other processes of this site, if it has some, what each rank owns, and who tells them of
  // the run. Ranks are processes, or else devices.
  SiteLinks* links = nullptr;
  int ranks = 1;
  std::vector<TensorShare> shares;
  std::function<bool(const std::string& bytes)> start;
  // Called on the training thread, some times a second while it waits for an answer. May be empty.
  std::function<void()> meanwhile;
};

// One thread at a time, but for RequestDrain and RequestCancel.
class ArenaSite {
 public:
  struct Orders {
    bool go = false;
    bool finished = false;
    bool drain = false;
    bool anew = false;
  };

  // `state` may be empty.
  static absl::StatusOr<std::unique_ptr<ArenaSite>> Join(const SiteJoin& join,
                                                         std::vector<GivenTensor> tensors,
                                                         std::span<const uint8_t> state,
                                                         FileSystem& file_system, Clock& clock);
  ~ArenaSite();
  ArenaSite(const ArenaSite&) = delete;
  ArenaSite& operator=(const ArenaSite&) = delete;

  const RunMember& member() const { return *member_; }
  RunMember& member() { return *member_; }
  bool restored() const { return restored_; }
  bool brought_model() const { return brought_model_; }
  SiteValues& values() { return values_; }
  absl::StatusOr<std::span<const float>> published();
  // Copy values of one fragment, from its value `first` on, wherever they are.
  absl::Status CopyLocal(int fragment, int64_t first, std::span<float> values);
  absl::Status SetLocal(int fragment, int64_t first, std::span<const float> values);

  std::span<const int32_t> Changed();
  absl::Status Ready();
  // DEADLINE_EXCEEDED after `timeout`. `between` is called about ten times a second meanwhile.
  absl::StatusOr<Orders> Wait(absl::Duration timeout, const std::function<void()>& between);
  absl::StatusOr<std::span<const int32_t>> Next();
  absl::StatusOr<std::span<const int32_t>> Step(int64_t tokens, int64_t draws);
  // Figures of the coming Step.
  void SetFigures(const StepFigures& figures, std::optional<absl::Duration> step_time);
  absl::Status Save(const std::function<uint8_t*(size_t bytes)>& allocate);
  absl::Status Saved(int64_t step);
  absl::StatusOr<std::span<const int32_t>> Finish();
  absl::Status LeaveFinished();
  absl::Status LeaveDrained();
  absl::Status LeaveFailed(const std::string& detail);
  // FAILED_PRECONDITION after the site could not begin anew.
  absl::StatusOr<nlohmann::json> Summary() const;

  // In a signal's handler, too.
  void RequestDrain() { drain_requested_ = true; }
  void RequestCancel() { cancel_requested_ = true; }

 private:
  // While the training thread is inside something that waits for the coordinator's answers.
  class Waiting {
   public:
    explicit Waiting(ArenaSite& site);
    ~Waiting();

   private:
    ArenaSite& site_;
  };

  ArenaSite(const SiteJoin& join, std::unique_ptr<RunMember> member, Clock& clock);

  absl::Status Begin(const SiteJoin& join, std::span<const uint8_t> state);
  absl::StatusOr<std::optional<RunMember::Place>> ReadState(std::span<const uint8_t> state);
  RunMember::Hooks MakeHooks(const SiteJoin& join);
  // Obeys RequestDrain and RequestCancel, and cuts transfers and ranks that these wait for too
  // long. Before it has joined, obeys `stop`.
  void Watch(const std::function<bool()>& stop);
  // The cause of `status`, which the site may not get over.
  absl::Status Failed(const absl::Status& status);
  absl::Status CheckJoined() const;
  // What an arena has between tensors.
  std::vector<float> GapsIn(std::span<const float> arena) const;
  // Copies them from the local values of all ranks, or with kPartSetGaps to these.
  absl::Status MoveGaps(PartMethod method, std::span<float> gaps);
  static absl::Status NoReplica();
  // Has all ranks do that. FAILED_PRECONDITION if the last replica was not made.
  absl::Status OnReplica(const PartCall& call);
  // The other ranks have done their part, unless there are none, or `touched` says that they had
  // none.
  absl::Status Settle(bool touched = true);
  std::span<const int32_t> Sorted(std::vector<int32_t> fragments);

  // They, and the ranks, outlive the member's replica.
  SiteValues values_;
  std::unique_ptr<LeadingRank> ranks_;
  const std::shared_ptr<IdentityKeeper> keeper_;
  const absl::Duration drain_timeout_;
  const std::string id_;
  const std::unique_ptr<RunMember> member_;
  Replica* replica_ = nullptr;  // The member's.
  std::atomic<bool> saving_ = false;
  Clock& clock_;
  std::vector<float> saved_gaps_;        // Values between tensors of a state,
  std::vector<float> saved_parameters_;  // and its parameters, until it is continued from,
  std::vector<int> saved_in_flight_;     // and the fragments that its merges may be of.
  bool restored_ = false;
  bool brought_model_ = false;
  bool ready_ = false;
  bool ready_due_ = false;  // After an anew, at the next Wait.
  bool anew_due_ = false;   // To be said at the next Wait.
  bool go_ = false;         // The last Wait said so,
  bool finished_ = false;   // or this.
  bool cut_step_ = false;   // The last step was cancelled: what it waited for is due still.
  bool left_ = false;
  bool clock_started_ = false;
  absl::Status failure_;
  absl::Duration step_begin_;
  StepFigures figures_;
  std::optional<absl::Duration> step_time_;
  std::vector<int32_t> merged_;   // In the present call.
  std::vector<int32_t> changed_;  // Not asked for yet.
  std::vector<int32_t> answer_;   // Returned by the last call.

  std::atomic<bool> drain_requested_ = false;
  std::atomic<bool> cancel_requested_ = false;
  absl::Mutex mutex_;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  bool drain_told_ ABSL_GUARDED_BY(mutex_) = false;  // To the session, by the watcher.
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;         // By a drain.
  std::optional<absl::Duration> waiting_since_ ABSL_GUARDED_BY(mutex_);
  PeriodicThread watcher_;
};

}  // namespace causeway::worker
