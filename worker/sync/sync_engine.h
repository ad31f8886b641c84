// Streaming DiLoCo from one worker's side (arXiv 2501.18512, algorithm 2): when an inner step is
// done, send what is due, merge what is due, and wait only for a due answer that is not there.
//
//   SyncEngine sync(options);
//   ASSIGN_OR_RETURN(int64_t step, sync.Fetch(welcome.run_step(), now));  // or Restore a
//   checkpoint while (step < steps) {
//     trainer.Step(++step);  // or further ahead, at another pace (StepCounter)
//     RETURN_IF_ERROR(sync.AfterStep(step, tokens, windows));
//   }
//   RETURN_IF_ERROR(sync.Drain());
//
// The replica (replica.h) has the values: local ones, the published copy, the residuals of error
// feedback. The engine decides what happens to them, and owns threads that encode, push and pull
// beside the training thread. A fragment is sent against its published copy, never against the
// mixed local value, and never twice at once.
//
// With sync.max_overlap_steps an answer that is not there at its merge step is merged after the
// first step at which it is, and waited for only at the last one that the setting allows. Which
// step that is depends on the network: SyncObserver::merged says it, and an engine that is given
// what another one was told merges at the same steps.
//
// A delta that missed its round (ABORTED) is added to the fragment's residual and so travels with
// the next one: nothing is lost, nothing is sent against another base.
//
// Thread-safety: one training thread calls all methods.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/client/exchange.h"
#include "common/codec/codec.h"
#include "common/params/draws.h"
#include "common/params/fragment_plan.h"
#include "common/params/sync_schedule.h"
#include "worker/sync/replica.h"

namespace causeway::worker {

// When an answer is merged before it has to be (sync.max_overlap_steps, docs/algorithm.md).
//
// From overlap_steps after its send on an answer is merged after the first step at which it is
// there. A process that continues what a former one did must merge at the same steps, or what it
// sends again has other bits. The record says when the former one merged. A round that the record
// lacks was not merged before the first step at which the former process would have waited for
// such a round: until then this one merges none of them either.

// Fragment and round -> the step after which it was merged.
using MergeSteps = std::map<std::pair<int, int64_t>, int64_t>;

// Not thread-safe.
class EarlyMerges {
 public:
  enum class Answer {
    kStays,     // Not merged now, whether it is there or not.
    kIfThere,   // Merged now if it is there.
    kRecorded,  // Merged now, and waited for.
  };

  // `config` is complete; `schedule` is its, with merge steps at max_overlap_steps. `recorded`:
  // what former processes merged.
  EarlyMerges(const v1::SyncConfig& config, const SyncSchedule& schedule, MergeSteps recorded);

  // False where every answer has one step: overlap_steps is max_overlap_steps.
  bool possible() const { return slack_steps_ > 0; }
  // Steps that an answer may be late, at most, without being waited for.
  int64_t slack_steps() const { return slack_steps_; }

  // This process continues from a checkpoint with these versions, by fragment.
  void Resume(std::span<const int64_t> versions);

  // Decides about a round in flight after `step`, which lies before its last merge step.
  Answer After(int64_t step, const SyncEvent& event) const;

 private:
  const SyncSchedule schedule_;
  const int64_t slack_steps_;
  const MergeSteps recorded_;
  int64_t unrecorded_from_ = 0;
};

// A round was merged after that step.
struct RecordedMerge {
  int64_t step = 0;
  SyncEvent event;
  bool operator==(const RecordedMerge&) const = default;
};

// Tells a test or a log of the engine's work. Called on the training thread.
struct SyncObserver {
  // A round was merged after `step`; the published copy has its new value.
  std::function<void(int64_t step, const SyncEvent& event)> merged;
  // A delta came too late for its round and was folded into the next.
  std::function<void(const SyncEvent& event)> late;
  // From now on training waits for the answer of that round; nothing: it goes on.
  std::function<void(const std::optional<SyncEvent>& event)> waits;
  // Called some times a second while it waits. May be empty.
  std::function<void()> meanwhile;
};

class SyncEngine {
 public:
  struct Options {
    v1::SyncConfig config;               // Complete.
    const FragmentPlan* plan = nullptr;  // These four outlive the engine.
    Replica* replica = nullptr;          // Has served no other engine.
    Exchange* exchange = nullptr;
    Clock* clock = nullptr;
    // Steps of the schedule that one inner step may advance by; at most H - tau_max, or 1.
    int max_advance = 1;
    int data_slot = 0;  // The part of the data that is drawn, or kOwnData.
    // Rounds that are merged after exactly these steps, which waits for them; any other after the
    // first step at which it is there. With max_overlap_steps only.
    std::vector<RecordedMerge> recorded_merges;
    SyncObserver observer;
  };

  // Everything that a bit-exact continuation needs beside the replica's own state.
  struct State {
    struct Fragment {
      int64_t version = 0;
      int64_t tokens = 0;  // Since the last send.
      Draws draws;         // Data of those tokens.
      // The round in flight, 0: none. Its object is empty where this worker did not contribute.
      int64_t round_in_flight = 0;
      int64_t tokens_in_flight = 0;
      Draws draws_in_flight;
      std::vector<uint8_t> object_in_flight;
      // With sync.keep_in_flight, of the round in flight: the local values when it was sent.
      std::vector<float> held;
    };
    std::vector<Fragment> fragments;
    int64_t next_draw = 0;
    std::vector<float> published;  // In arena order.
    std::vector<float> residual;   // In arena order; empty if nothing is carried.
  };

  explicit SyncEngine(Options options);
  // Cancels the exchange and waits for the threads.
  ~SyncEngine();
  SyncEngine(const SyncEngine&) = delete;
  SyncEngine& operator=(const SyncEngine&) = delete;

  // Welcome.run_step as it is now, or was at most `max_age` ago.
  using RunStep = std::function<absl::StatusOr<int64_t>(absl::Duration max_age)>;

  // Fetches every fragment's published state into the published copy and the replica. Returns the
  // step to continue from: at least `run_step`, and no earlier than the versions received allow
  // without passing over an open round.
  //
  // The run may go on for many rounds while states are on their way. With `now` it is followed:
  // what was fetched is kept up to date by answers, which are smaller, and the step is the one at
  // which the last of them was there.
  absl::StatusOr<int64_t> Fetch(int64_t run_step, const RunStep& now = {});

  // To be checked first: RESOURCE_EXHAUSTED if the threads that transfer could not be started.
  const absl::Status& started() const {
    return encoders_->started().ok() ? threads_->started() : encoders_->started();
  }

  // Continues from a checkpoint: the replica's parameters are restored by the caller. Transfers
  // that were in flight start again; an object that the coordinator has is not counted twice.
  // Blocks for answers that were due already.
  // INVALID_ARGUMENT if the state does not fit the plan and the step; nothing has changed then.
  absl::Status Restore(State state, int64_t step);

  // Waits until what is in flight is encoded, not until it is answered. Errors are the replica's.
  absl::StatusOr<State> Save();

  // From the next step on, that part of the data is drawn, from that draw on.
  void UseData(int slot, int64_t next_draw);
  // The first draw of the next step.
  int64_t next_draw() const { return next_draw_; }

  // Call it after every inner step, in order. The step ended at `step`, 1 .. max_advance steps
  // after the one before; it trained `tokens` tokens, which were `draws` draws from next_draw on.
  // Sends whatever is due after the steps that it covered, then merges what is due after them, both
  // in the order of the schedule. Blocks only for answers that are due. An error is final; after
  // CANCELLED (Exchange::Cancel while an answer was waited for) Save still gives a state that
  // Restore continues from, bit for bit. OUT_OF_RANGE, also of Restore: the answer is gone and the
  // run more than H steps ahead, so that this worker's steps are of no use to it; it starts anew,
  // with another engine.
  absl::Status AfterStep(int64_t step, int64_t tokens, int64_t draws);

  // The fragments, sorted, whose local values AfterStep(step, ...) will read or write. From then on
  // it is certain what that call merges: an answer that comes later is merged after a later step.
  std::vector<int> FragmentsTouchedBy(int64_t step);
  // The same of Drain.
  std::vector<int> FragmentsInFlight() const;

  // How far training gets if no further answer comes.
  struct Slack {
    int awaited = 0;    // Rounds in flight whose answers are not there.
    int late = 0;       // Those of them whose merge step has passed.
    int64_t steps = 0;  // That can be done before training waits; at least 1 between two steps.
  };
  Slack slack() const;

  // At the end of training: waits for every round in flight and merges it.
  absl::Status Drain();

  // Waits until every delta in flight is acknowledged, not until it is answered: what a worker
  // owes the others before it leaves. The answers stay in flight, and so in Save.
  absl::Status FinishPushes();

  // In arena order; changes at merges only. The values stay until the next call of any method.
  // Errors are the replica's.
  absl::StatusOr<std::span<const float>> published() const { return options_.replica->Published(); }
  int64_t version(int fragment) const { return fragments_[static_cast<size_t>(fragment)].version; }
  int64_t rounds_merged() const { return rounds_merged_; }
  int64_t rounds_late() const { return rounds_late_; }
  // Time that the training thread waited for answers.
  absl::Duration blocked() const { return blocked_; }

 private:
  // One round of one fragment under way. Shared with the thread that carries it.
  struct Flight {
    SyncEvent event;
    int64_t tokens = 0;
    Draws draws;
    int64_t send_step = 0;
    bool contributes = false;
    bool restored = false;  // From a checkpoint: it may have been sent before.
    // Until it is encoded.
    std::unique_ptr<Replica::Delta> delta;

    absl::Mutex mutex;
    bool encoded ABSL_GUARDED_BY(mutex) = false;
    bool pushed ABSL_GUARDED_BY(mutex) = false;  // Or failed, or nothing to push.
    bool done ABSL_GUARDED_BY(mutex) = false;
    int64_t arrival ABSL_GUARDED_BY(mutex) = 0;  // Place in the order of arrival.
    bool late ABSL_GUARDED_BY(mutex) = false;
    EncodedObject object ABSL_GUARDED_BY(mutex);  // Without checksums in a restored flight.
    absl::StatusOr<PulledObject> answer ABSL_GUARDED_BY(mutex) = absl::UnknownError("not asked");
  };

  struct FragmentState {
    int64_t version = 0;
    int64_t tokens = 0;
    Draws draws;
    std::shared_ptr<Flight> flight;
  };

  // A merge whose hash has not been compared yet.
  struct UnfinishedMerge {
    SyncEvent event;
    uint64_t expected_hash = 0;
  };

  // A run has at most 2^40 steps (train.steps), and a fragment no more versions than that. The step
  // of any round up to this one can be computed.
  static constexpr int64_t kMaxVersion = int64_t{1} << 40;

  static std::string Describe(const SyncEvent& event);
  FragmentState& fragment(int index) { return fragments_[static_cast<size_t>(index)]; }

  absl::Status CheckState(const State& state, int64_t step) const;
  // Decides which answers AfterStep(step, ...) merges before they have to be.
  void FixEarlyMerges(int64_t step);
  // Sends what the schedule asks for after `due_step`, after the inner step that ended at `step`.
  absl::Status SendDue(int64_t due_step, int64_t step);
  absl::Status MergeDue(int64_t due_step, int64_t step);
  absl::Status Send(const SyncEvent& event, int64_t step);
  // A flight for a round that this worker did not contribute to.
  absl::Status Follow(const SyncEvent& event, int64_t step);
  void Launch(std::shared_ptr<Flight> flight);
  // On a thread of its own kind: what waits for the network keeps nothing from being encoded.
  void Encode(const std::shared_ptr<Flight>& encoded);
  // On a transfer thread.
  void Carry(const std::shared_ptr<Flight>& carried);

  // Waits for the fragment's flight and merges it.
  absl::Status Land(int fragment, int64_t step);
  bool Answers(const SyncEvent& event, const PulledObject& answer) const;
  absl::Status MergeAnswer(const SyncEvent& event, const PulledObject& answer);
  // Compares the hashes of the last merges, in their order, and tells the coordinator. Those that
  // the replica still computes are waited for, or left for a later step.
  absl::Status FinishMerges(bool waits = true);
  // The same before something else happens to the fragment.
  absl::Status FinishMergeOf(int fragment);
  absl::Status FetchState(int fragment);
  // Takes over the rounds of a fragment that are merged by `step`. Returns how many.
  absl::StatusOr<int> CatchUp(int fragment, int64_t step);
  // The earliest step that the versions allow, if the run is at `run_step`.
  int64_t FirstStep(int64_t run_step) const;
  void Await(Flight& flight, const bool& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(flight.mutex);
  absl::Status FoldLateDelta(const Flight& flight, std::span<const uint8_t> object);

  const Options options_;
  const SyncSchedule schedule_;  // Its merge steps are the last ones.
  EarlyMerges early_;            // Before them.
  const bool gradients_;
  const bool keeps_in_flight_;
  const Codec* const codec_up_;
  const Codec* const codec_down_;
  std::vector<FragmentState> fragments_;
  std::vector<UnfinishedMerge> unfinished_;
  int64_t rounds_merged_ = 0;
  int64_t rounds_late_ = 0;
  absl::Duration blocked_ = absl::ZeroDuration();
  int64_t last_step_ = 0;
  int64_t fixed_step_ = 0;         // The step of early_merges_.
  std::vector<int> early_merges_;  // Fragments, in order of arrival.
  std::atomic<int64_t> arrivals_ = 0;
  int data_slot_;
  int64_t next_draw_ = 0;
  // Last: its threads use all of the above.
  std::unique_ptr<WorkQueue> threads_;
  std::unique_ptr<WorkQueue> encoders_;  // These give work to those.
};

// Where a worker is in its run.
struct TrainingPlace {
  int64_t step = 0;    // Steps of the schedule, done.
  int64_t tokens = 0;  // Trained.
  // The step counter's. Files of before there were paces have none, which means these.
  int64_t pace_milli = kPaceOne;
  int64_t pace_carry_milli = 0;
  int data_slot = 0;
  SyncEngine::State sync;
};

}  // namespace causeway::worker
