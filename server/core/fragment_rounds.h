// One fragment at the coordinator: its state, its open round, and its answers.
//
// Two locks, always taken in this order: data_mutex_ guards the large arrays and is held
// exclusively through a merge; mutex_ guards what is small and is held briefly. Version and data
// change together while both are held, so a reader under either sees a consistent pair.
//
// The arrays are in memory while a round needs them, and at rest otherwise (fragment_arrays.h).
//
// What becomes of a closed round is the tier's: HubRounds merges and publishes it, RegionRounds
// (region_role.h) sends it to the parent.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/record.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/sync_schedule.h"
#include "server/core/delta_check.h"
#include "server/core/fragment_arrays.h"
#include "server/core/versions.h"
#include "server/outer/merge.h"
#include "server/outer/outer_optimizer.h"
#include "server/round/plausibility.h"
#include "server/round/round_policy.h"
#include "server/store/store.h"

namespace causeway::server {

// Who has contributed to a fragment's open round and to its latest ones, and whose contributions
// are held and not merged: out of line, impossible, or kept out by an operator's order.

// Why a contribution is held and not merged.
enum class Quarantine { kNone, kOutlier, kAboveCap, kOverflow, kRejected };

// The outcome of a contribution.
struct AddedContribution {
  v1::PushResponse response = {};  // A duplicate was held already, and has nothing of what follows.
  Quarantine quarantine = Quarantine::kNone;
  double norm = 0;
  // The outlier guard judged it by this; 0: it has too few norms yet, or is off.
  double median = 0;
  double cap = 0;             // The largest norm that the fragment takes; 0: any.
  bool may_overflow = false;  // The merge says whether it is quarantined.
  bool quarantined() const { return quarantine != Quarantine::kNone; }
  // The record keeps this. What an operator keeps out is no part of it: he may let it in again.
  bool out_of_line() const { return quarantined() && quarantine != Quarantine::kRejected; }
};

// A contribution that was accepted, and found to be impossible when its round closed.
struct LateQuarantine {
  std::string worker_id;
  double norm = 0;
  std::string reason;  // The merge's error.
};

// Orders in force: worker -> rounds, and 0 - n for every round from n on.
using Rejections = std::map<std::string, std::set<int64_t>>;

// Not thread-safe. Rounds count from 1; the one after the last that Publish knows is open.
class RoundLedger {
 public:
  struct Held {
    v1::Contribution record;
    SharedBytes object;
    bool accepted = false;  // False while it is verified and stored.
    absl::Duration arrived;
    bool rejected = false;
    bool kept_out() const { return record.quarantined() || rejected; }
  };
  // By worker id: the summation order. Copies share the objects' bytes.
  using Contributions = std::map<std::string, Held>;
  // Callbacks of pushes that have begun, by worker.
  using Begun = std::map<std::string, RoundClosed>;

  explicit RoundLedger(int fragment) : fragment_(fragment) {}

  // After a restart: becomes what a former process knew. All as in FragmentRounds::History. EndAdd
  // takes each contribution to the open round.
  void Restore(std::span<const v1::Round> rounds, std::span<const v1::Contribution> contributions,
               Rejections rejections);

  int64_t open() const { return open_; }
  bool closed() const { return closed_; }  // The open round is being merged.
  const Contributions& contributions() const { return contributions_; }
  const Rejections& rejections() const { return rejections_; }
  const NormHistory& norms() const { return norms_; }
  // Fills in who has contributed to the open round, and when.
  void Describe(OpenRound& round) const;

  // What became of this very object if it is held, nothing if it may be sent, else the error that
  // its push ends with (exchange.proto).
  absl::StatusOr<std::optional<v1::PushResponse>> Find(const v1::PushHeader& header) const;
  // `closed` is to be called once the open round has closed. The worker's next one takes its place.
  void NoteBegun(const std::string& worker_id, RoundClosed closed);
  // Another stream adds an object of the worker at this moment.
  bool IsAdding(const std::string& worker_id) const;
  // Takes its place while it is verified and stored; EndAdd or CancelAdd follows.
  void BeginAdd(const v1::Contribution& record);
  v1::PushResponse EndAdd(v1::Contribution record, SharedBytes object, absl::Duration now);
  void CancelAdd(const std::string& worker_id) { contributions_.erase(worker_id); }

  // Whether an order keeps that contribution out.
  bool IsRejected(const std::string& worker_id, int64_t round) const;
  // FragmentRounds::Reject.
  absl::Status Reject(const std::string& worker_id, int64_t round, bool undo);

  // The open round takes no more. False: one is still being added, whose end is to be waited for.
  bool Close();
  // Nobody has heard of it: it is open again, for these, too.
  void Reopen(Begun begun);
  Begun TakeBegun() { return std::exchange(begun_, {}); }
  // The closed round is published, without those that are none of its contributors. The next one is
  // open.
  void Publish(const v1::Round& record);

 private:
  v1::PushResponse Accepted(const v1::PushHeader& header, bool duplicate) const;
  // Keeps what is asked for of a published round, given its contributions.
  void Remember(const v1::Round& round, std::span<const v1::Contribution> records);

  const int fragment_;
  int64_t open_ = 1;
  bool closed_ = false;
  Contributions contributions_;
  Begun begun_;
  // Who was in the rounds published last: worker id -> object hash.
  std::map<int64_t, std::map<std::string, uint64_t>> past_;
  NormHistory norms_;
  Rejections rejections_;
  // Rounds, as far back as past_, and workers.
  std::set<std::pair<int64_t, std::string>> quarantined_;
};

// The threads that merges share; one merge uses them at a time.
struct MergePool {
  // Calls `use` with the threads, or null: it has the calling thread alone.
  template <typename Use>
  auto With(Use use) {
    if (threads == nullptr) return use(nullptr);
    absl::MutexLock lock(&mutex);
    return use(threads);
  }

  absl::Mutex mutex;
  ThreadPool* threads = nullptr;  // Null: every merge runs on its caller's thread.
};

// A contribution that counts for less than it claims.
struct CutClaim {
  std::string worker_id;
  int64_t claimed = 0;
  int64_t counted = 0;
  // Against that of the others who claims least: it may not have said what it trains.
  std::string least_id = {};
  int64_t least = 0;
};

// The outcome of closing a round.
struct PublishedRound {
  v1::Round record;
  std::vector<std::string> missing;  // Expected, but closed without.
  std::vector<LateQuarantine> overflowed;
  std::vector<CutClaim> cut;
  std::vector<PullCallback> waiters;
  std::shared_ptr<const PullObject> answer;
};

// Thread-safe.
class FragmentRounds {
 public:
  struct Options {
    int fragment = 0;
    FragmentRange range;
    const v1::RunConfig* config = nullptr;  // This and what follows outlives the object.
    const OuterOptimizer* optimizer = nullptr;
    const Codec* codec_up = nullptr;
    const Codec* codec_down = nullptr;
    Clock* clock = nullptr;
    Store* store = nullptr;
    MergePool* merge_pool = nullptr;
    RecentAnswers* answers = nullptr;
    // Null: the arrays never rest. Else there is room for them from there on.
    ScratchFile* scratch = nullptr;
    uint64_t scratch_offset = 0;
    SyncSchedule schedule;
  };

  // The store's memory of the fragment; views for the call.
  struct History {
    uint64_t initial_hash = 0;
    // Fills in the initial values; asked where no snapshot does.
    std::function<absl::Status(std::span<float>)> initial;
    std::span<const v1::Round> rounds;                // From 1, without gaps.
    std::span<const v1::Contribution> contributions;  // Sorted by round.
    std::vector<int64_t> snapshots;                   // Versions, ascending.
    Rejections rejections;
  };
  // A snapshot that is not whole: its version, and what is wrong.
  using Damaged = std::pair<int64_t, absl::Status>;

  explicit FragmentRounds(const Options& options);
  virtual ~FragmentRounds() = default;
  FragmentRounds(const FragmentRounds&) = delete;
  FragmentRounds& operator=(const FragmentRounds&) = delete;

  // Begin or Recover comes before anything else.
  // Begins with the fragment's range of the initial parameters.
  void Begin(FloatBuffer initial);
  // Becomes what the store remembers. Folds the deltas of all rounds since the newest snapshot that
  // is whole into it, or into the initial values if there is none. Drops and returns those
  // snapshots that are not. DATA_LOSS if a round does not come out with the hashes that were
  // recorded of it, or nothing whole is there to begin from.
  virtual absl::StatusOr<std::vector<Damaged>> Recover(const History& history);

  int fragment() const { return options_.fragment; }
  Versions& versions() { return versions_; }
  const Versions& versions() const { return versions_; }

  // Where a push stands: what became of this very object if it is held already, nothing if it may
  // be sent, else the error that it ends with (exchange.proto). If it may be sent, `closed` (may be
  // null) is called once the round has closed, by the thread that closes it, without a lock. The
  // worker's next one takes its place.
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                            RoundClosed closed);
  // Rounds::MeasureLeaf: `bytes` are leaf `leaf` of a contribution to that round.
  std::vector<double> MeasureLeaf(int64_t round, int64_t leaf,
                                  std::span<const uint8_t> bytes) const;
  // Verifies, judges, stores and counts the object. Errors that concern the contribution are those
  // of exchange.proto; INTERNAL and the like are the store's.
  absl::StatusOr<AddedContribution> Add(const v1::PushHeader& header, ReceivedObject object);
  // The worker's contributions to that round (0: to the open one and all later ones) are held and
  // not merged, or count again from now on. FAILED_PRECONDITION if the round is published or being
  // merged, or if there is no such order to undo.
  absl::Status Reject(const std::string& worker_id, int64_t round, bool undo);
  Rejections rejections() const;

  OpenRound open_round() const;
  // Closes the open round if that is due, and publishes it, or hands it on: nothing then, as where
  // it is not due. After an error the fragment stands still.
  absl::StatusOr<std::optional<PublishedRound>> Advance(
      const std::map<std::string, Member>& members, const RoundPolicy& policy);

  absl::StatusOr<std::shared_ptr<const PullObject>> State() const;
  // Copies the published values, as many as the fragment has.
  absl::Status CopyPublished(std::span<float> values) const;
  // Saves the state in the store, if it has changed since that was done last; merges of this
  // fragment wait meanwhile. A state that is worth nothing is not saved.
  absl::Status SaveSnapshot();
  int64_t snapshot_version() const;
  // Answers of earlier rounds will not be asked for any more.
  virtual absl::Status ForgetAnswers(int64_t before_round);
  // Lets the arrays leave memory, unless the open round needs them. To be called after a round,
  // once everybody was told.
  void Rest();

 protected:
  // A round on its way from closing to publishing.
  struct ClosedRound {
    PublishedRound result;
    RoundLedger::Contributions contributions;
    RoundLedger::Begun begun;
    absl::Duration closed_at;
  };

  // --- What the tiers do each in its own way ---
  // Theta as the run begins.
  virtual FloatBuffer FirstTheta(const FloatBuffer& published) const = 0;
  // Gives the last word on whether the round closes.
  virtual void Reconsider(const OpenRound& /*round*/, Decision& /*decision*/)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}
  // Publishes the closed round, or hands it on. Calls its `begun`.
  virtual absl::StatusOr<std::optional<PublishedRound>> Finish(ClosedRound closed) = 0;
  // Merges these. With `rehearse`, FAILED_PRECONDITION has changed nothing.
  virtual absl::StatusOr<MergeResult> Merge(int64_t round, std::vector<Contribution> contributions,
                                            bool rehearse)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_) = 0;
  // Merges again what was recorded, and compares the hashes.
  virtual absl::Status Refold(const v1::Round& round, std::vector<Contribution> contributions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_) = 0;

  // Merges what is not kept out. Without those, the largest first, that would make values which are
  // not finite: the result names them. Fills in the record's contributors and weights.
  absl::StatusOr<MergeResult> MergeWhatCanBe(ClosedRound& closed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  // Stores the round, which the state contains already, and makes it the newest.
  absl::StatusOr<PublishedRound> StoreAndPublish(ClosedRound closed, ByteBuffer answer,
                                                 std::vector<uint64_t> leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  static void TellClosed(const RoundLedger::Begun& begun);

  const Options options_;

  mutable absl::Mutex data_mutex_;
  FragmentArrays arrays_ ABSL_GUARDED_BY(data_mutex_);
  // A merge failed half-way (the training diverged): the state is worth nothing.
  bool state_is_void_ ABSL_GUARDED_BY(data_mutex_) = false;
  // A merged round, which is not published yet, needs the arrays.
  bool keeps_arrays_ ABSL_GUARDED_BY(data_mutex_) = false;

  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(data_mutex_);
  RoundLedger ledger_ ABSL_GUARDED_BY(mutex_);
  // A former process closed the open round, and this one has not yet.
  bool closed_before_ ABSL_GUARDED_BY(mutex_) = false;
  // PublishedNorm of a version; no version yet: -1.
  mutable std::pair<int64_t, double> published_norm_ ABSL_GUARDED_BY(mutex_) = {-1, 0};
  int64_t snapshot_version_ ABSL_GUARDED_BY(mutex_) = 0;  // In the store; 0: the initial.
  int64_t older_snapshot_ ABSL_GUARDED_BY(mutex_) = 0;    // Before snapshot_version_.

 private:
  // Brings the arrays to memory. INTERNAL: they cannot be read any more.
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  void BeginWith(FloatBuffer initial) ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  OpenRound OpenRoundLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<v1::PushResponse>> Find(const v1::PushHeader& header) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the delta's norm.
  absl::StatusOr<double> VerifyObject(const v1::PushHeader& header, const ReceivedObject& object);
  // Verifies, judges and stores the object, as Add does.
  absl::StatusOr<AddedContribution> VerifyAndSave(v1::Contribution& record,
                                                  const ReceivedObject& object);
  // The verdict on a delta of that norm.
  AddedContribution Judge(double norm) const;
  // The Euclidean norm of the published values.
  double PublishedNorm() const ABSL_SHARED_LOCKS_REQUIRED(data_mutex_);
  absl::Status LoadSnapshot(int64_t version);
  // From the newest whole snapshot, or the initial values. Returns its version.
  absl::StatusOr<int64_t> LoadBase(const History& history, std::vector<Damaged>& damaged);
  absl::Status RefoldStored(const v1::Round& round);
  absl::Status LoadOpenRound(std::span<const v1::Contribution> records);

  const DeltaCheck check_;
  Versions versions_;
  // From closing to publishing, smoothed; zero before the first round.
  absl::Duration merge_time_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  // The state object that was built last, while somebody still holds it.
  mutable std::weak_ptr<const PullObject> state_object_ ABSL_GUARDED_BY(mutex_);
};

// At the hub: a closed round is merged and published at once.
class HubRounds final : public FragmentRounds {
 public:
  using FragmentRounds::FragmentRounds;

 private:
  FloatBuffer FirstTheta(const FloatBuffer& published) const override { return published; }
  absl::StatusOr<std::optional<PublishedRound>> Finish(ClosedRound closed) override;
  absl::StatusOr<MergeResult> Merge(int64_t round, std::vector<Contribution> contributions,
                                    bool rehearse) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  absl::Status Refold(const v1::Round& round, std::vector<Contribution> contributions) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
};

}  // namespace causeway::server
