// A coordinator with a small model, and workers in the same process that pretend to train.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/params/sync_schedule.h"
#include "server/core/coordinator.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/base/from_text.h"
#include "tests/unit/common/telemetry/awaited_events.h"
#include "tests/unit/server/core/small_run.h"
#include "tests/unit/server/store/memory_store.h"

namespace causeway::server {

// Three fragments, H = 6, tau = 1, int4 both ways, two workers to start, lease 10 s.
v1::RunConfig ToyConfig();

class ToyStore final : public MemoryStore {
 public:
  absl::Status SaveContribution(const v1::Contribution& record,
                                std::span<const uint8_t> object) override {
    if (record.header().worker_id() == full_for)
      return absl::ResourceExhaustedError("the disk is full");
    return MemoryStore::SaveContribution(record, object);
  }
  absl::Status CheckRoom(uint64_t /*bytes*/) override { return room; }
  absl::Status SaveSnapshot(const FragmentView& fragment) override {
    if (on_snapshot != nullptr) RETURN_IF_ERROR(on_snapshot(fragment.fragment));
    return MemoryStore::SaveSnapshot(fragment);
  }
  absl::Status room;     // Whether there is room for what is about to be sent.
  std::string full_for;  // There is no room for what this worker contributes.
  // Called before a snapshot of the fragment is saved; null: nothing is. An error keeps it out.
  std::function<absl::Status(int fragment)> on_snapshot;
};

struct ToyRun {
  // `changes`: textproto over ToyConfig. A run of tensors has no other model.
  explicit ToyRun(const std::string& changes = "", std::optional<RegionOptions> of_region = {});

  v1::Join MakeJoin(const std::string& id, uint64_t nonce) const;
  Members& members() { return coordinator->members(); }
  Rounds& rounds() { return coordinator->rounds(); }
  Orders& orders() { return coordinator->orders(); }
  v1::RunStatus status() const { return coordinator->GetStatus(); }
  // Returns what becomes of a pull of that answer now; UNKNOWN: it has to wait.
  absl::Status PullAnswer(int fragment, int64_t round);
  int64_t hash_checks() const;  // From the summary: call after Shutdown.
  // The coordinator dies, and another one takes over what the store holds.
  void Restart();
  absl::StatusOr<std::unique_ptr<Coordinator>> MakeCoordinator(
      std::optional<RecoveredRun> recovered);

  FakeClock clock;
  ToyStore store;
  AwaitedEvents events;
  std::unique_ptr<Coordinator> coordinator;
  // Holds for coordinators that are made from now on.
  ThreadPool* merge_pool = nullptr;
  bool snapshots_have_to_do = false;  // They get no initial values.

 private:
  v1::RunConfig config_;
  const std::optional<RegionOptions> region_;
};

// One site: walks the schedule as a worker does, with made-up inner steps.
class ToyWorker {
 public:
  ToyWorker(ToyRun& run, std::string id, uint64_t nonce);

  absl::Status Join(int64_t resume_step = 0);
  absl::Status Ready(int64_t step, bool anew = false);
  absl::Status Heartbeat(int64_t checkpoint_step = -1);
  absl::Status Say(const std::string& message);  // Of v1::WorkerMessage.
  void Cut();                                    // Its stream breaks.
  // A heartbeat that says how fast the worker is; 64 tokens per inner step.
  absl::Status ReportSpeed(int64_t step, double inner_step_seconds, int64_t pace_milli = 1000);
  absl::Status Leave(v1::Leave::Reason reason);
  // Join, fetch the state, Ready at the run's step.
  absl::Status Enter();

  // One inner step, so many times as long as others take, and what the schedule asks for after it.
  // Merges wait for their answers, so on one thread, merge only what is published.
  void Train(float size = 1);
  void Diverge();           // The local values leave all reason behind.
  absl::Status SendDue();   // Contributes what is due after the present step.
  absl::Status MergeDue();  // Merges what is due, waiting for it.

  // With error feedback the same round again starts from the same residual.
  v1::PushHeader MakePush(int fragment, int64_t round, std::vector<uint8_t>& object);
  absl::Status Push(int fragment, int64_t round);
  // Offers nothing before, sends what `change` makes of the delta, and merges nothing.
  absl::StatusOr<v1::PushResponse> Contribute(
      int fragment, int64_t round,
      const std::function<void(v1::PushHeader&, std::vector<uint8_t>&)>& change);
  absl::Status Merge(int fragment, int64_t round);
  absl::Status PullStates();

  const std::string& id() const { return id_; }
  int64_t step() const { return step_; }
  const v1::Welcome& welcome() const { return welcome_; }
  const RecordingSink& sink() const { return *sink_; }
  const std::vector<float>& published() const { return published_; }
  uint64_t incarnation() const { return welcome_.incarnation(); }

 private:
  absl::Status Handle(const v1::WorkerMessage& message);

  ToyRun& run_;
  const std::string id_;
  const uint64_t nonce_;
  const SyncSchedule schedule_;
  std::shared_ptr<RecordingSink> sink_;
  v1::Welcome welcome_;
  int64_t step_ = 0;
  std::vector<float> published_;
  std::vector<float> local_;
  struct Sent {
    int64_t round = 0;
    std::vector<float> before, after;  // Residuals.
  };
  std::map<int, Sent> sent_;  // By fragment, with error feedback.
};

// One step of all: each trains and sends, `between` happens, and each merges.
void TrainStep(
    std::initializer_list<ToyWorker*> workers, const std::function<void()>& between = [] {});

// Two sites that have entered, and train in step.
struct TwoWorkers {
  explicit TwoWorkers(const std::string& changes = "");
  // The coordinator dies; both workers attach to its successor.
  void Restart();
  // `between`: called in every step when a has sent and b has not.
  void TrainBoth(
      int steps, const std::function<void()>& between = [] {});

  ToyRun run;
  ToyWorker a{run, "a", 1};
  ToyWorker b{run, "b", 2};
};

}  // namespace causeway::server
