// The coordinator without its sockets: members, rounds, merges and the store, put together.
//
// Decisions are made elsewhere, in pure code (server/round); server/outer computes; what lasts is
// behind server/store. This class holds the locks and calls them in order. The gRPC services
// (server/service) and the in-process exchange of the tests are its only callers. Each calls the
// role that it needs: members, rounds, orders, or that of a region.
//
// The store has every fact and decision before anybody hears of it. So a coordinator that dies is
// replaced by one made from what the store recovers: same members under the same incarnations, same
// open rounds, same published values, bit for bit.
//
// Life of a round (fragment, r): Open (contributions arrive) -> Closed (contributors fixed) ->
// Merged -> Durable (the store has it) -> Published (waiters are called, members are told).
//
// Thread-safety: every method may be called by any thread. MergeDue and Tick may merge a fragment,
// which takes as long as reading and writing it once, and Contribute waits for the store: do not
// call them on a thread that serves the network. Fragments merge independently of each other. Sinks
// and callbacks are called without a lock held, possibly on the caller's thread. Handle never
// merges: rounds that a Ready or a Leave lets close are closed by the next Tick.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/admin.pb.h"
#include "causeway/v1/exchange.pb.h"
#include "causeway/v1/record.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "common/telemetry/event_log.h"
#include "server/core/delta_check.h"
#include "server/core/versions.h"
#include "server/store/store.h"

namespace causeway::server {

// A coordinator under a coordinator. A region is a coordinator to its sites and a worker to its
// parent: each of its rounds, once closed, becomes one delta, which goes up; the parent's answer
// comes down to the sites as it is.

// One closed round of a region, on its way up. What is in it is durable.
struct RegionDelta {
  // As its parent will see it, but for what belongs to the parent's session. The record has no
  // draws: those are in the contributions of its sites.
  v1::PushHeader header;
  // False: the parent has published the round; its answer alone is wanted.
  bool contributes = true;
  bool maybe_sent = false;  // A former process may have sent some of it.
  int64_t due_step = 0;
  SharedBytes object;            // In the run's codec_up.
  std::vector<uint64_t> leaves;  // LeafChecksums(object).
};

// The parent's answer.
struct ParentAnswer {
  bool late = false;  // The parent had closed the round without this region.
  int64_t round = 0;
  v1::Codec codec = v1::CODEC_UNSPECIFIED;
  uint64_t published_hash = 0;
  ByteBuffer bytes;
};

// A region's way to its parent, as its coordinator sees it. Thread-safe.
class Parent {
 public:
  using Callback = std::function<void(absl::StatusOr<ParentAnswer>)>;

  virtual ~Parent() = default;
  // Never blocks. Tries until the answer is there, and calls back then, on a thread of its own, or
  // with an error that is final. NOT_FOUND: the parent no longer keeps the answer. CANCELLED: it is
  // shutting down.
  virtual void Carry(RegionDelta delta, Callback done) = 0;
  // The region's published copy has that hash after the round.
  virtual void Applied(int fragment, int64_t round, uint64_t published_hash) = 0;
};

struct RegionOptions {
  Parent* parent = nullptr;        // Outlives the coordinator.
  std::string id;                  // Name of the region as a worker of its parent.
  int sites = 0;                   // Most sites that it may have.
  std::vector<std::string> above;  // The regions that its parent is in, from the hub down.
};

// Where a region is, for its parent.
struct RegionPlace {
  bool ready = false;  // Its sites are there.
  int64_t step = 0;    // Rounds sent later expect a contribution of it.
  v1::Heartbeat heartbeat;
};

// What a region's parent says, and asks.
class Region {
 public:
  virtual ~Region() = default;
  virtual RegionPlace Place() const = 0;
  // Begins training, or lets it go on. The region's sites have the parts of the data from
  // first_slot on; part first_slot + i goes on with next_draws[i].
  virtual absl::Status Begin(int first_slot, const std::vector<int64_t>& next_draws) = 0;
  virtual absl::Status NoteParentPublished(int fragment, int64_t round) = 0;
  // As Orders::StopAtStep, whatever step the sites are at.
  virtual absl::Status Stop(int64_t step) = 0;
  // The parent refuses this region, for good.
  virtual void Fail(const absl::Status& why) = 0;
};

// Who wants to see a run as it goes: a history for people, metrics.
//
// Called by the coordinator without a lock held, on any thread, possibly on several at once: return
// soon, and never call the coordinator. Calls about one round may overtake each other by a little
// (an Applied may come before the OnPublished of its round).
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // It got a lease, for the first time or again.
  virtual void OnJoined(const std::string& /*worker_id*/) {}
  // Accepted, of a live member.
  virtual void OnHeartbeat(const std::string& /*worker_id*/, const v1::Heartbeat& /*heartbeat*/) {}
  // A worker was told to send that object. May be repeated for one object.
  virtual void OnPushBegun(const v1::PushHeader& /*header*/) {}
  // The object is in the store, once.
  virtual void OnContributed(const v1::PushHeader& /*header*/, bool /*quarantined*/) {}
  // `missing`: expected, but closed without.
  virtual void OnPublished(const v1::Round& /*round*/,
                           const std::vector<std::string>& /*missing*/) {}
  // The worker's copy has that round, with the right hash.
  virtual void OnApplied(const std::string& /*worker_id*/, int /*fragment*/, int64_t /*round*/) {}
};

// Errors of the store or of the mathematics, as opposed to those of a caller.
bool IsFatal(const absl::Status& status);

// Returns FAILED_PRECONDITION if a worker's call ("push") is for another run, as when a new run was
// started at the address of a former one.
absl::Status CheckRunId(absl::string_view call, absl::string_view run_id,
                        absl::string_view own_run_id);

// Returns FAILED_PRECONDITION if a worker has seen a later epoch than this coordinator's own.
absl::Status CheckEpoch(absl::string_view worker_id, int64_t seen, int64_t own);

// The way back to one attached worker.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  // Queues the message; never blocks, never calls the coordinator.
  virtual void Send(const v1::CoordinatorMessage& message) = 0;
  // Ends the session with that status. At most once; nothing is sent after it.
  virtual void Close(const absl::Status& status) = 0;
};

// Fills in what a fragment begins with, as many values as it has. By any thread, for several
// fragments at once.
using InitialValues = std::function<absl::Status(int fragment, std::span<float> values)>;

struct Run;  // What the roles act on (run.h), which outlives them.

// Takes an operator's orders (proto/causeway/v1/admin.proto), and gives those that members' speeds
// call for.
class Orders {
 public:
  explicit Orders(Run& run) : run_(run) {}

  absl::Status Pause(const std::string& reason);
  absl::Status Resume();
  // Drains that worker; empty: all workers. NOT_FOUND if there is none.
  absl::Status Drain(const std::string& worker_id);
  // Keeps a worker's contributions out, or lets them in again (proto/causeway/v1/admin.proto).
  absl::Status Reject(const v1::RejectRequest& order);
  absl::Status StopAtStep(int64_t step);
  absl::Status StopAtTokens(int64_t tokens);
  // The invitations of the run's own authority are part of its record (server/access).
  v1::InvitationList Invitations() const;
  absl::Status KeepInvitations(const v1::InvitationList& list);

  // Acts on the speeds that were just reported: other paces, or the end of the token budget. Call
  // it without a lock; sends and records.
  absl::Status ActOnProgress();

 private:
  Run& run_;
};

// What workers say in their sessions (proto/causeway/v1/session.proto has the meaning and the
// errors).
class Members {
 public:
  Members(Run& run, Orders& orders) : run_(run), orders_(orders) {}

  // Checks the join, gives a lease and keeps the sink until Close, Disconnected or a newer
  // incarnation. The sink receives no Welcome: the caller sends the returned one first.
  absl::StatusOr<v1::Welcome> Join(const v1::Join& join, std::shared_ptr<SessionSink> sink);
  // Ready, Heartbeat, Applied or Leave of that incarnation. An error ends the session.
  absl::Status Handle(const std::string& worker_id, uint64_t incarnation,
                      const v1::WorkerMessage& message);
  // The stream is over, as `why` says. The lease goes on.
  void Disconnected(const std::string& worker_id, uint64_t incarnation, const absl::Status& why);

 private:
  Run& run_;
  Orders& orders_;
};

// What travels (proto/causeway/v1/exchange.proto).
class Rounds {
 public:
  virtual ~Rounds() = default;
  // Begins a push, before any chunk is taken. Returns what became of the object if it was accepted
  // before, nothing if it is to be sent, or the error that the push would end with. If it is to be
  // sent the observers are told, and `closed` (may be null) is called once the round has closed,
  // with the object or without it: BeginPush says which. A callback of the same worker and fragment
  // that came before is not called.
  virtual absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                                    RoundClosed closed) = 0;
  // Checks the codes of leaf `leaf`, the bytes from `leaf` MiB on, of an object that was admitted
  // to that round and is still coming: they are in a cache then. Returns the sums of squares of the
  // codec chunks that lie in the leaf from end to end. Contribute takes these and looks at the
  // other chunks itself, or at the whole leaf if nothing is returned. Never blocks.
  virtual std::vector<double> MeasureLeaf(int fragment, int64_t round, int64_t leaf,
                                          std::span<const uint8_t> bytes) const = 0;
  // Takes the whole object. Verifies size, hash and codes before anything changes; returns what
  // became of it when it is as durable as the store makes it. The same object again is OK. Waits
  // for a merge only if nothing else can say whether this object overflows.
  virtual absl::StatusOr<v1::PushResponse> Contribute(const v1::PushHeader& header,
                                                      ReceivedObject object) = 0;
  // Closes, merges and publishes the fragment's round if that is due. Call it once the sender was
  // told what Contribute returned, an error too; else the next Tick does it.
  virtual void MergeDue(int fragment) = 0;
  // Calls back with the answer of the round, at once if it is kept, else when it is published.
  virtual void PullAnswer(int fragment, int64_t round, PullCallback callback) = 0;
  // Returns the published values and their version, as a consistent pair.
  virtual absl::StatusOr<std::shared_ptr<const PullObject>> PullState(int fragment) = 0;
  // Adds to the accounts that the worker was sent `bytes` of such an object.
  virtual void RecordPulled(const std::string& worker_id, v1::Want::Object object,
                            int64_t bytes) = 0;
};

// "data-parallel" for GRADIENT contributions; "diloco" for one fragment without overlap; else
// "streaming".
absl::string_view RunMode(const v1::SyncConfig& sync);

class Coordinator {
 public:
  struct Options {
    v1::RunConfig config;  // Complete (CompleteRunConfig).
    std::string run_id;
    // Values that the run begins with. A run that goes on may have none if every fragment of
    // `recovered` has a snapshot.
    InitialValues initial_values = nullptr;
    // Fragments rest in a file there between their rounds (fragment_arrays.h). Empty: in memory.
    std::string scratch_folder = {};
    // The result of store->Recover(): the run goes on. Empty: it begins, and the store is told so.
    std::optional<RecoveredRun> recovered = {};
    Clock* clock = nullptr;  // Outlives the coordinator, as do the next three.
    Store* store = nullptr;
    EventLog* events = nullptr;
    // Observers outlive it, too.
    std::vector<RunObserver*> observers = {};
    ThreadPool* merge_pool = nullptr;  // Null: merges run on the calling thread. Else the
                                       // coordinator is its only user.
    // Answers kept per fragment: at least kept_answers (2 or more), and back to the checkpoints
    // that workers report, but at most max_kept_answers.
    int kept_answers = 4;
    int max_kept_answers = 256;
    // Rounds after which a fragment's state is saved. A recovery folds no more than these.
    int snapshot_every_rounds = 10;
    std::optional<RegionOptions> region = {};  // None: this is the hub.
  };

  // Returns DATA_LOSS if the recovered run comes out with other hashes than the recorded ones;
  // FAILED_PRECONDITION if it is of another configuration.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(Options options);
  virtual ~Coordinator() = default;

  virtual const v1::RunConfig& config() const = 0;
  virtual const FragmentPlan& plan() const = 0;
  virtual const std::string& run_id() const = 0;
  virtual v1::DescribeResponse Describe() const = 0;

  // The roles live as long as the coordinator.
  virtual Members& members() = 0;
  virtual Rounds& rounds() = 0;
  virtual Orders& orders() = 0;
  virtual Region* region() = 0;  // Null: this is the hub.

  // Ends leases that ran out and closes rounds whose grace is over. Call it a few times a second.
  virtual void Tick() = 0;
  // Saves the state of fragments that are due, until a second has passed, and the accounts of the
  // workers; forgets answers that nobody can ask for any more. Returns whether fragments are due
  // still: call it again at once then, else every few seconds. On a thread of its own: writing
  // takes as long as the disk does.
  virtual bool Maintain() = 0;

  virtual v1::RunStatus GetStatus() const = 0;
  enum class End {
    kNotYet,
    // All members have left while this coordinator served, and none was lost or failed: nobody is
    // there to go on, though a drained worker may come back.
    kAllLeft,
    // Training began, no member is live, and the end was reached: as a member said when it left, by
    // a member's step, or by all rounds being published.
    kReached,
  };
  virtual End Ended() const = 0;
  bool ReachedItsEnd() const { return Ended() == End::kReached; }
  bool Finished() const { return Ended() != End::kNotYet; }
  // Not OK once the store failed or the training diverged: no round closes any more, every call
  // returns this. Shutdown is all that is left to do.
  virtual absl::Status Health() const = 0;
  // Publishes what rounds are due, fails all waiting pulls with UNAVAILABLE, closes all sinks,
  // waits for merges under way and writes the state and the summary to the store, unless Health is
  // not OK, which is then returned. All later calls return UNAVAILABLE.
  virtual absl::Status Shutdown() = 0;

  // Copies the published values, in arena order, for checkpoints and tests.
  virtual std::vector<float> PublishedParameters() const = 0;
};

// A member that has joined and neither left nor was lost.
inline bool IsLive(const v1::WorkerStatus& worker) {
  return worker.state() == v1::WorkerStatus::ACTIVE || worker.state() == v1::WorkerStatus::JOINING;
}

}  // namespace causeway::server
