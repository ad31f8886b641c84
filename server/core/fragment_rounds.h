// One fragment at the coordinator: its state, its open round, and its answers.
//
// Two locks, always taken in this order: data_mutex_ guards the large arrays and is held
// exclusively through a merge; mutex_ guards what is small and is held briefly. Version and data
// change together while both are held, so a reader under either sees a consistent pair.
//
// The arrays are in memory while a round needs them, and at rest otherwise (fragment_arrays.h).
#ifndef CAUSEWAY_SERVER_CORE_FRAGMENT_ROUNDS_H_
#define CAUSEWAY_SERVER_CORE_FRAGMENT_ROUNDS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/byte_buffer.h"
#include "common/base/clock.h"
#include "common/base/shared_bytes.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec.h"
#include "common/params/draws.h"
#include "common/params/fragment_plan.h"
#include "common/params/sync_schedule.h"
#include "server/core/fragment_arrays.h"
#include "server/core/parent.h"
#include "server/core/pull_object.h"
#include "server/core/received_object.h"
#include "server/outer/merge.h"
#include "server/outer/outer_optimizer.h"
#include "server/round/membership.h"
#include "server/round/plausibility.h"
#include "server/round/round_policy.h"
#include "server/store/store.h"

namespace causeway::server {

// A worker's whole training does not come to more; keeps sums of tokens exact.
inline constexpr int64_t kMaxTokens = int64_t{1} << 48;
// A fragment's values and deltas have norms far below; what is above may overflow.
inline constexpr double kSafeNorm = 1e12;

// The threads that merges share; one merge uses them at a time.
struct MergePool {
  absl::Mutex mutex;
  ThreadPool* threads = nullptr;  // Null: every merge runs on its caller's thread.
};

// The answers of all fragments that are pulled now: the newest two, and more while these are small.
class RecentAnswers {
 public:
  void Keep(std::shared_ptr<const PullObject> answer);

 private:
  absl::Mutex mutex_;
  std::deque<std::shared_ptr<const PullObject>> kept_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

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
    // A region's id at its parent: rounds are merged for the parent. Empty: the hub.
    std::string region_id = {};
    bool region() const { return !region_id.empty(); }
  };

  // The store's memory of the fragment; views for the call.
  struct History {
    uint64_t initial_hash = 0;
    // Fills in the initial values; asked where no snapshot does.
    std::function<absl::Status(std::span<float>)> initial;
    std::span<const v1::Round> rounds;                // From 1, without gaps.
    std::span<const v1::Contribution> contributions;  // Sorted by round.
    std::vector<int64_t> snapshots;                   // Versions, ascending.
  };

  explicit FragmentRounds(const Options& options);

  // Begin or Recover comes before anything else.
  // Begins with the fragment's range of the initial parameters.
  void Begin(FloatBuffer initial);
  // Becomes what the store remembers. Folds the deltas of all rounds since
  // the newest snapshot that is whole into it, or into the initial values if there is none, and
  // drops those snapshots that are not. DATA_LOSS if a round does not come out with the hashes that
  // were recorded of it, or nothing whole is there to begin from.
  absl::Status Recover(const History& history);
  // Snapshots that Recover passed over: the version, and what is wrong.
  const std::vector<std::pair<int64_t, absl::Status>>& damaged_snapshots() const {
    return damaged_snapshots_;
  }

  int fragment() const { return options_.fragment; }
  // Bytes of one contribution: every codec's size is fixed.
  int64_t contribution_bytes() const;
  // Where a push stands: what became of this very object if it is held already, nothing if it may
  // be sent, else the error that it ends with (exchange.proto).
  absl::StatusOr<std::optional<v1::PushResponse>> FindHeld(const v1::PushHeader& header) const;
  // The same. If it may be sent, `closed` (may be null) is called once the round has closed, by the
  // thread that closes it, without a lock. The worker's next one takes its place.
  absl::StatusOr<std::optional<v1::PushResponse>> BeginPush(const v1::PushHeader& header,
                                                            RoundClosed closed);
  // Coordinator::MeasureLeaf: `bytes` are leaf `leaf` of a contribution to that round.
  std::vector<double> MeasureLeaf(int64_t round, int64_t leaf,
                                  std::span<const uint8_t> bytes) const;
  // Verifies, judges, stores and counts the object. Errors that concern the contribution are those
  // of exchange.proto; INTERNAL and the like are the store's.
  absl::StatusOr<AddedContribution> Add(const v1::PushHeader& header, ReceivedObject object);
  // The worker's contributions to that round (0: to the open one and all later ones) are held and
  // not merged, or count again from now on. FAILED_PRECONDITION if the round is published or being
  // merged, or if there is no such order to undo.
  absl::Status Reject(const std::string& worker_id, int64_t round, bool undo);
  // The orders in force: worker -> rounds, and 0 - n for every round from n on.
  std::map<std::string, std::set<int64_t>> rejections() const;
  // After Recover: the orders of a former coordinator, as rejections() gave them.
  void RestoreRejections(const std::string& worker_id, const std::set<int64_t>& rounds);

  OpenRound open_round() const;
  // Closes, merges, stores and publishes the open round if that is due; nothing otherwise. After
  // an error the fragment stands still. A region's is closed and merged, and goes up: TakeUpward.
  absl::StatusOr<std::optional<PublishedRound>> Advance(
      const std::map<std::string, Member>& members, const RoundPolicy& policy);

  // --- A region's rounds (region_rounds.cc) ---
  // Returns what Advance closed, once, for the parent.
  std::optional<RegionDelta> TakeUpward();
  // The parent's answer to the round that went up: applies, stores and publishes it. DATA_LOSS if
  // it is another one, or does not lead to the parent's hash.
  absl::StatusOr<PublishedRound> AcceptAnswer(ParentAnswer answer);
  // The parent has published that round: nothing is gained by waiting for sites any more.
  void NoteParentVersion(int64_t round);

  // The answer, or null after keeping the callback until the round is published.
  absl::StatusOr<std::shared_ptr<const PullObject>> AnswerOrWait(int64_t round,
                                                                 PullCallback& callback);
  // No answer comes any more: returns who waited.
  std::vector<PullCallback> TakeWaiters();
  absl::StatusOr<std::shared_ptr<const PullObject>> State() const;

  int64_t version() const;
  // Returns the hash of a published version; OUT_OF_RANGE for a later one.
  absl::StatusOr<uint64_t> PublishedHash(int64_t version) const;

  // Saves the state in the store, if it has changed since that was done last; merges of this
  // fragment wait meanwhile. A state that is worth nothing is not saved.
  absl::Status SaveSnapshot();
  int64_t rounds_since_snapshot() const;
  int64_t snapshot_version() const;
  // Answers of earlier rounds will not be asked for any more.
  absl::Status ForgetAnswers(int64_t before_round);

  // Copies the published values, as many as the fragment has.
  absl::Status CopyPublished(std::span<float> values) const {
    absl::ReaderMutexLock lock(&data_mutex_);
    return arrays_.CopyPublished(values);
  }
  // Lets the arrays leave memory, unless the open round has contributions or is at the parent. To
  // be called after a round, once everybody was told.
  void Rest();

 private:
  struct Held {
    v1::Contribution record;
    SharedBytes object;
    bool accepted = false;  // False while Add verifies and stores it.
    absl::Duration arrived;
    bool rejected = false;
    bool kept_out() const { return record.quarantined() || rejected; }
  };
  // By worker id: the summation order. Copies share the objects' bytes.
  using Contributions = std::map<std::string, Held>;

  FragmentView View(const FragmentArrays::Set& arrays) const;
  // Brings the arrays to memory. INTERNAL: they cannot be read any more.
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  // Whether a contribution can only be judged beside the published values.
  bool NeedsBase() const;
  absl::Status CheckHeader(const v1::PushHeader& header) const;
  absl::StatusOr<std::optional<v1::PushResponse>> Lookup(const v1::PushHeader& header) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // ABORTED: the round is closed, without a contribution of the worker.
  absl::Status ClosedWithout(const std::string& worker_id, int64_t round) const;
  // Callbacks of pushes that have begun, by worker.
  using Begun = std::map<std::string, RoundClosed>;
  static void TellClosed(const Begun& begun);
  // Tells the sender that its contribution is held, to this round or a past one.
  v1::PushResponse Accepted(const v1::PushHeader& header, bool duplicate) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OpenRound OpenRoundLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Verifies, judges and stores the object, as Add does.
  absl::StatusOr<AddedContribution> VerifyAndSave(v1::Contribution& record,
                                                  const ReceivedObject& object);
  // Returns the delta's norm.
  absl::StatusOr<double> VerifyObject(const v1::PushHeader& header, const ReceivedObject& object);
  // The sum of squares of a codec chunk; an error if its codes are not valid.
  absl::StatusOr<double> SquaresOf(size_t chunk, std::span<const uint8_t> codes) const
      ABSL_SHARED_LOCKS_REQUIRED(data_mutex_);
  // The codec chunks [first, second) that lie in the leaf of an object from end to end.
  std::pair<size_t, size_t> ChunksWithin(size_t leaf) const;
  size_t codec_chunks() const;
  // Bytes of the codec chunks before that one.
  size_t CodesBegin(size_t codec_chunk) const;
  // The verdict on a delta of that norm.
  AddedContribution Judge(double norm) const;
  // The Euclidean norm of the published values.
  double PublishedNorm() const ABSL_SHARED_LOCKS_REQUIRED(data_mutex_);
  bool IsRejected(const std::string& worker_id, int64_t round) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The round is published: its norms become history.
  void RememberNorms(const std::vector<double>& merged, const std::vector<double>& quarantined)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecoverNorms(const History& history) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<PublishedRound> MergeAndPublish(int64_t round, const Contributions& contributions,
                                                 Decision decision);
  absl::StatusOr<MergeResult> Merge(int64_t round, std::vector<Contribution> contributions,
                                    bool rehearse) ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  // A round on its way from closing to publishing.
  struct ClosedRound {
    PublishedRound result;
    std::map<std::string, uint64_t> object_hashes;
    std::vector<double> merged_norms;
    std::vector<double> quarantined_norms;
    absl::Duration closed_at;
  };
  ClosedRound Close(int64_t round, const Contributions& contributions, Decision decision) const;
  // Once the record has its contributors.
  static void NoteContributors(const Contributions& contributions, ClosedRound& closed);
  // Stores the round, which the state contains already, and makes it the newest.
  absl::StatusOr<PublishedRound> StoreAndPublish(ClosedRound closed, ByteBuffer answer,
                                                 std::vector<uint64_t> leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  // For a region: merges the round, makes it durable, and leaves it for TakeUpward.
  absl::Status CloseForParent(int64_t round, const Contributions& contributions, Decision decision);
  absl::StatusOr<MergeResult> MergeRegion(int64_t round, std::vector<Contribution> contributions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  absl::Status RefoldRegion(const v1::Round& round, std::vector<Contribution> contributions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  void RecoverLateRounds(const History& history) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Merges what is not kept out. Without those, the largest first, that would make values which are
  // not finite: `result` names them. Fills in the record's contributors and weights.
  absl::StatusOr<MergeResult> MergeWhatCanBe(const Contributions& contributions,
                                             PublishedRound& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  void BeginWith(FloatBuffer initial) ABSL_EXCLUSIVE_LOCKS_REQUIRED(data_mutex_);
  absl::Status LoadSnapshot(int64_t version);
  // From the newest whole snapshot, or the initial values. Returns its version.
  absl::StatusOr<int64_t> LoadBase(const History& history);
  absl::Status Refold(const v1::Round& round);
  absl::Status LoadOpenRound(std::span<const v1::Contribution> records);
  void RememberPast(int64_t round, std::map<std::string, uint64_t> object_hashes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<PullObject> MakeAnswer(const v1::Round& record, ByteBuffer bytes,
                                         std::vector<uint64_t> leaves) const;

  const Options options_;

  mutable absl::Mutex data_mutex_;
  // A region keeps in theta what its last delta left out.
  FragmentArrays arrays_ ABSL_GUARDED_BY(data_mutex_);
  // A merge failed half-way (the training diverged): the state is worth nothing.
  bool state_is_void_ ABSL_GUARDED_BY(data_mutex_) = false;

  // In a region, while a round is on its way to the parent: theta after it, and its delta.
  FloatBuffer next_theta_ ABSL_GUARDED_BY(data_mutex_);
  std::optional<ClosedRound> at_parent_ ABSL_GUARDED_BY(data_mutex_);
  SharedBytes sent_ ABSL_GUARDED_BY(data_mutex_);

  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(data_mutex_);
  // The rest of a region's. A former process closed the open round with a delta of this hash:
  std::optional<uint64_t> closed_before_ ABSL_GUARDED_BY(mutex_);
  std::optional<RegionDelta> upward_ ABSL_GUARDED_BY(mutex_);
  int64_t parent_version_ ABSL_GUARDED_BY(mutex_) = 0;
  // Belongs to rounds that the parent closed without this region: they travel with the next delta.
  int64_t late_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  Draws late_draws_ ABSL_GUARDED_BY(mutex_);
  int64_t older_snapshot_ ABSL_GUARDED_BY(mutex_) = 0;              // Before snapshot_version_.
  std::vector<uint64_t> published_hashes_ ABSL_GUARDED_BY(mutex_);  // By version, from 0.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;                     // The round is being merged.
  int64_t snapshot_version_ ABSL_GUARDED_BY(mutex_) = 0;            // In the store; 0: the initial.
  Contributions contributions_ ABSL_GUARDED_BY(mutex_);
  Begun begun_ ABSL_GUARDED_BY(mutex_);
  // Who was in the rounds published last: worker id -> object hash.
  std::map<int64_t, std::map<std::string, uint64_t>> past_ ABSL_GUARDED_BY(mutex_);
  NormHistory norms_ ABSL_GUARDED_BY(mutex_);
  // PublishedNorm of a version; no version yet: -1.
  mutable std::pair<int64_t, double> published_norm_ ABSL_GUARDED_BY(mutex_) = {-1, 0};
  // As rejections() gives them.
  std::map<std::string, std::set<int64_t>> rejections_ ABSL_GUARDED_BY(mutex_);
  // Rounds, as far back as past_, and workers.
  std::set<std::pair<int64_t, std::string>> quarantined_ ABSL_GUARDED_BY(mutex_);
  // From closing to publishing, smoothed; zero before the first round.
  absl::Duration merge_time_ ABSL_GUARDED_BY(mutex_);
  // By round, those that somebody holds; the store has all that are kept.
  std::map<int64_t, std::weak_ptr<const PullObject>> answers_ ABSL_GUARDED_BY(mutex_);
  int64_t first_answer_ ABSL_GUARDED_BY(mutex_) = 1;  // Earlier ones are forgotten.
  std::vector<PullCallback> waiters_ ABSL_GUARDED_BY(mutex_);
  // The state object that was built last, while somebody still holds it.
  mutable std::weak_ptr<const PullObject> state_object_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int64_t, absl::Status>> damaged_snapshots_;  // Fixed after Recover.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_FRAGMENT_ROUNDS_H_
