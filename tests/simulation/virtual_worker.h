// One process of a worker: speaks the protocol as worker/member does, synchronizes as worker/sync
// and worker/commands do, and only pretends to train. Where those block a thread, this one is
// pumped again when something has happened.
#pragma once

#include <optional>
#include <vector>

#include "common/codec/codec.h"
#include "common/params/sync_schedule.h"
#include "tests/simulation/virtual_session.h"
#include "worker/sync/sync_engine.h"

namespace causeway::simulation {

// One round of one fragment under way.
struct Flight {
  SyncEvent event;
  int64_t tokens = 0;
  int64_t send_step = 0;
  uint64_t base_hash = 0;       // 0: a former process made it.
  std::vector<uint8_t> object;  // Empty: this worker does not contribute.
  bool pushed = false;
  bool late = false;
  bool done = false;
  CoordinatorHost::Reply answer = absl::UnknownError("not asked");
};

struct WorkerFragment {
  int64_t version = 0;
  int64_t tokens = 0;  // Since the last send.
  std::vector<float> residual;
  DeltaLedger ledger;
  std::shared_ptr<Flight> flight;
  std::vector<float> held;  // With sync.keep_in_flight: local values when the flight began.
};

// Fragment and round -> the step after which it was merged. On a site's disk, as merges.jsonl.
using MergeRecord = worker::MergeSteps;

// Everything that a bit-exact continuation needs.
struct WorkerCheckpoint {
  int64_t step = 0;
  std::vector<float> local;
  std::vector<float> published;
  std::vector<WorkerFragment> fragments;  // Flights are copies.
};

class VirtualWorker final : public VirtualSession {
 public:
  enum class Exit { kFinished, kDrained, kFailed };
  struct Options : VirtualSession::Options {
    std::optional<WorkerCheckpoint> checkpoint;  // To resume from.
    std::function<void(const WorkerCheckpoint&)> save;
    std::function<void(Exit)> on_exit;  // Once, unless it is killed. May delete the worker later.
    MergeRecord* record = nullptr;
    bool drop_late_deltas = false;  // The bugs of these names.
    bool forget_merges = false;
    bool merge_unrecorded = false;
    bool lies = false;  // About its tokens and its speed.
  };

  explicit VirtualWorker(Options options);
  void Start();
  int64_t step() const { return step_; }

 private:
  enum class Phase {
    kAttaching,
    kFetching,  // The published state.
    kEntering,  // Merging what was due before this process began.
    kTraining,
    kFinishing,    // Waiting for every round in flight.
    kHandingOver,  // Waiting for every push.
    kLeaving
  };

  void Complete(v1::Join& join) const override;
  v1::Heartbeat Progress() const override;
  When may_call() const override { return phase_ == Phase::kLeaving ? When::kNever : When::kNow; }
  bool beats() const override { return stream_ != nullptr && phase_ != Phase::kLeaving; }
  void OnWelcome(const v1::Welcome& welcome, bool first) override;
  void OnTold(const v1::CoordinatorMessage& message) override;
  bool OnBroken(const absl::Status& status) override;
  void Leave(v1::Leave::Reason reason, Exit exit);
  void Fail(const absl::Status& status);
  void End(Exit exit);
  void ReportApplied(int fragment, int64_t version);

  // --- Synchronization and training ---
  void Begin(const v1::Welcome& welcome);
  void Restore();
  void FetchNext();
  void OnState(int fragment, const CoordinatorHost::Reply& reply, bool catching_up);
  // Does whatever can be done now.
  void Pump();
  bool Enter();
  bool MergeDue();
  // The rounds that are merged after this step although they could wait.
  std::vector<SyncEvent> EarlyMerges() const;
  void RecordMerge(const SyncEvent& event);
  void StepDone();
  void StartTraining();
  void SendDelta(const SyncEvent& event);
  void Launch(std::shared_ptr<Flight> flight);
  void PushFlight(const std::shared_ptr<Flight>& flight);
  void PullFlight(const std::shared_ptr<Flight>& flight);
  // Merges the fragment's flight; false if it has to wait, or failed.
  bool Land(int fragment);
  void FoldLateDelta(const Flight& flight);
  void Mix(int fragment, float alpha);
  void Hold(int fragment);
  void TakeState(int fragment, const server::PullObject& state);
  void SaveCheckpoint();

  std::span<float> Part(std::vector<float>& arena, int fragment) const;
  WorkerFragment& fragment(int index) { return fragments_[static_cast<size_t>(index)]; }

  const Options options_;
  const v1::SyncConfig& sync_;
  const SyncSchedule schedule_;  // Its merge steps are the last ones.
  worker::EarlyMerges early_;    // The product's rule.
  const Codec& up_;
  const Codec& down_;
  const uint64_t noise_;
  Phase phase_ = Phase::kAttaching;

  bool draining_ = false;
  Exit exit_ = Exit::kFailed;

  int64_t step_ = 0;
  int64_t checkpoint_step_ = -1;  // -1: there is none.
  int fetched_ = 0;
  int64_t run_step_ = 0;  // The run's step, as it was last told before it joined.
  bool stepping_ = false;
  bool state_asked_ = false;  // A landing waits for a whole state.
  std::deque<SyncEvent> merges_due_;
  std::vector<float> local_;
  std::vector<float> published_;
  std::vector<WorkerFragment> fragments_;
};

}  // namespace causeway::simulation
