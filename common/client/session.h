// A worker's session with the coordinator over gRPC: describe, attach, heartbeat, obey, leave.
//
// A broken stream is attached again with the same process nonce, for as long as the coordinator is
// away; a refusal ends the session. Only where a Join that was welcomed once is refused so that
// somebody else may answer at the address (MayBeAnothers: another run, an old copy, another
// release), it is tried again for ten minutes. A first attach is repeated, too, while the
// coordinator is away or takes the id for that of a process whose lease has not ended yet: it is
// this worker's former process more often than not. Two threads serve the stream.
//
// Thread-safety: every method may be called by any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/telemetry/event_log.h"

namespace causeway {

// Asks the coordinator for the run's configuration; waits up to `timeout` for it to come up, after
// the caller has done so for `waited`. UNAVAILABLE names the address, the whole time and the flag
// that gave the address. region_id: of a region that asks its parent, and is refused there if it
// may not be one; a worker has none. `stop`, unless it is empty: true ends it with CANCELLED.
absl::StatusOr<v1::DescribeResponse> DescribeRun(v1::Session::StubInterface& stub,
                                                 const std::string& address, absl::Duration timeout,
                                                 absl::Duration waited = absl::ZeroDuration(),
                                                 absl::string_view region_id = "",
                                                 const std::function<bool()>& stop = {});

// A Join of that run as it was described, but for what its sender says of itself.
v1::Join JoinOf(const v1::DescribeResponse& run, const std::string& worker_id);

class Session {
 public:
  struct Options {
    // The stream goes over the first: another one than before ends it, and the next goes over that.
    std::shared_ptr<RenewedChannels> channels;
    v1::Join join;                      // process_nonce is filled in.
    v1::Heartbeat progress;             // Until SetProgress.
    EventLog* events = NullEventLog();  // Outlives the session.
    // Told, by the session's thread, when a stream stands and when it stands no more.
    std::function<void(bool stands)> on_stream = [](bool) {};
    // Told likewise why a stream ended, or none came to stand, before another try.
    std::function<void(const absl::Status&)> on_failed_try = [](const absl::Status&) {};
    // Whether a stream that ended so is attached again.
    std::function<bool(const absl::Status&)> passes = IsRetryable;
    // For a region, on the session's thread: each welcome, and each round that was published.
    std::function<void(const v1::Welcome&)> on_welcome = {};
    std::function<void(const v1::RoundOutcome&)> on_outcome = {};
    // Told likewise, for people, whom the round lacks that this worker waits for; empty: it does
    // not.
    std::function<void(const std::string& waits_for)> on_waits_for = [](const std::string&) {};
    // For the first welcome; longer than a former process of this id can keep its lease.
    absl::Duration first_attach_patience = absl::Seconds(20);
    // How far behind the run a membership that was lost may go on.
    int64_t max_steps_behind = 0;
    const Clock* clock = Clock::Real();  // Outlives the session.
  };

  // The coordinator's wishes for the training loop.
  struct Orders {
    // As of that word of the coordinator.
    void Note(const v1::Welcome& welcome);
    void Note(const v1::Directive& directive);

    bool started = false;
    bool paused = false;
    bool drain = false;
    int64_t stop_at_step = 0;  // 0: the budget.
    // The pace to go at from that step on, in 1/1000; 0: none was ordered.
    int64_t pace_milli = 0;
    int64_t pace_from_step = 0;
    // The part of the data to draw, and the draw to begin it with if it was another one until now.
    int data_slot = 0;
    int64_t next_draw = 0;
    std::vector<int64_t> next_draws;   // Next draws of a region: of that part and those after it.
    std::vector<std::string> members;  // That are alive.
    std::string pause_reason;          // While paused, where the operator gave one.
    // The stream broke for so long that the membership was lost, and the run went on: the worker
    // should start anew there. Until Ready.
    std::optional<v1::Welcome> start_anew;
  };

  // Attaches and waits for the welcome. Errors as Session.Attach in session.proto.
  static absl::StatusOr<std::unique_ptr<Session>> Attach(Options options);
  // Without Leave, the coordinator counts this worker as lost when its lease ends.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Calls back once when the session ends with an error: on a session thread, or at once on this
  // one if it has ended so already. What the callback uses must outlive the session.
  void OnFailure(std::function<void(const absl::Status&)> callback);

  const v1::Join& join() const { return options_.join; }
  const v1::Welcome& welcome() const { return welcome_; }  // The first one.
  uint64_t incarnation() const;                            // The latest.
  // Whether no stream stands, and one is sought: whoever answers other calls may be somebody else.
  bool IsAway() const;
  // Whether another call of this member that failed so is tried again: while IsAway, every one is.
  bool Passes(const absl::Status& status) const { return options_.passes(status) || IsAway(); }
  int64_t epoch() const;  // The largest that a coordinator has had.

  // `anew`: session.proto.
  void Ready(int64_t step, bool anew);
  void Applied(int fragment, int64_t round, uint64_t published_hash);
  // Sets what the next heartbeats say.
  void SetProgress(const v1::Heartbeat& progress);
  // Sets that figure alone.
  void SetStepsBeforeWait(int64_t steps);
  // The checkpoint of that step is written. A heartbeat says so at once: the coordinator keeps all
  // answers that a worker's checkpoint may need.
  void SetCheckpoint(int64_t step);

  // Waits, up to `timeout`, until training has started and is not paused, or drain is ordered. An
  // error if the session failed meanwhile.
  absl::StatusOr<Orders> WaitForGo(absl::Duration timeout);
  // Without waiting.
  absl::StatusOr<Orders> orders() const;
  // The step at which a worker that starts anew goes on, as the coordinator said at most `max_age`
  // ago: it is asked if need be. Where no answer comes for a while, the last one counts. An error
  // if the session failed.
  absl::StatusOr<int64_t> RunStep(absl::Duration max_age);
  // Asks for a drain from this side (a signal): orders say so.
  void RequestDrain();

  // Says good-bye and waits, up to some seconds, until the coordinator has heard it. Attaches again
  // first if the stream is broken: else the coordinator would wait until the lease ends.
  void Leave(v1::Leave::Reason reason, const std::string& detail);

 private:
  using Stream = grpc::ClientReaderWriterInterface<v1::WorkerMessage, v1::CoordinatorMessage>;

  explicit Session(Options options);
  // One stream from attach to its end; returns why it ended.
  absl::Status RunStream();
  void RunSession();
  void RunWriter();
  // Ends the stream if it should go over another connection by now.
  void EndOutdated();
  void Enqueue(v1::WorkerMessage message);
  v1::WorkerMessage ReadyMessage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Obey(const v1::CoordinatorMessage& message);
  void NoteRunStep(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status);

  Options options_;
  v1::Welcome welcome_;  // Set before Attach returns.

  mutable absl::Mutex mutex_;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;     // Leave was called.
  bool left_ ABSL_GUARDED_BY(mutex_) = false;        // It returned: nothing more is said.
  bool said_leave_ ABSL_GUARDED_BY(mutex_) = false;  // A stream took it.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;       // The session thread is done.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> on_failure_ ABSL_GUARDED_BY(mutex_);
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t lease_ms_ ABSL_GUARDED_BY(mutex_) = 10'000;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t ready_step_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ready_anew_ ABSL_GUARDED_BY(mutex_) = false;
  Orders orders_ ABSL_GUARDED_BY(mutex_);
  v1::Heartbeat progress_ ABSL_GUARDED_BY(mutex_);
  bool heartbeat_is_due_ ABSL_GUARDED_BY(mutex_) = false;  // At once: it has news, or asks.
  int64_t run_step_ ABSL_GUARDED_BY(mutex_) = 0;           // As of:
  absl::Duration run_step_at_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
  int64_t renewals_ ABSL_GUARDED_BY(mutex_) = 0;  // Of the lease, and welcomes.
  std::deque<v1::WorkerMessage> outbox_ ABSL_GUARDED_BY(mutex_);
  // The present stream; null between streams. The writer holds writing_ while it uses it.
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // That of the present stream, and whether it is ended for another one.
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  bool outdated_ ABSL_GUARDED_BY(mutex_) = false;

  // The session thread's.
  absl::Duration alone_since_;  // When a stream stood last, or it began to try.
  int retries_ = 0;             // Since then.
  // Since when somebody else has answered in the coordinator's place.
  std::optional<absl::Duration> other_since_;

  std::thread session_thread_;
  std::thread writer_thread_;
};

}  // namespace causeway
