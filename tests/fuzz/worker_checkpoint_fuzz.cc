// A worker's checkpoint, as far as training would take it: the file, its configuration, and the
// synchronization state that the engine restores.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/params/fragment_plan.h"
#include "tests/fuzz/array_file_input.h"
#include "tests/fuzz/memory_files.h"
#include "tests/fuzz/target.h"
#include "tests/unit/worker/model/same_checkpoint.h"
#include "worker/sync/host_part.h"
#include "worker/sync/sync_engine.h"

namespace causeway::fuzz {
namespace {

using worker::SyncEngine;
using worker::WorkerCheckpoint;

// Takes every contribution too late and never has an answer, so that what was in flight is decoded.
class LateExchange final : public Exchange {
 public:
  explicit LateExchange(bool late) : late_(late) {}
  absl::Status Push(const Contribution&) override {
    return late_ ? absl::AbortedError("closed") : absl::OkStatus();
  }
  absl::StatusOr<PulledObject> PullAnswer(int, int64_t, int64_t) override {
    return late_ ? absl::NotFoundError("gone") : absl::CancelledError("cancelled");
  }
  absl::StatusOr<PulledObject> PullState(int) override { return absl::UnavailableError("away"); }
  void ReportApplied(int, int64_t, uint64_t) override {}
  void Cancel() override {}
  int64_t bytes_up() const override { return 0; }
  int64_t bytes_down() const override { return 0; }

 private:
  const bool late_;
};

// Whether it is restored or refused: no state may make it crash.
void Restore(WorkerCheckpoint checkpoint, bool late) {
  const auto plan = FragmentPlan::Create(checkpoint.config);
  FUZZ_REQUIRE(plan.ok(), "the configuration of an accepted checkpoint has a plan");
  const auto replica = worker::MakeHostReplica(*plan, checkpoint.config.sync(),
                                               checkpoint.parameters, checkpoint.parameters)
                           .value();
  LateExchange exchange(late);
  SyncEngine engine({.config = checkpoint.config.sync(),
                     .plan = &*plan,
                     .replica = replica.get(),
                     .exchange = &exchange,
                     .clock = Clock::Real(),
                     .max_advance = 1,
                     .recorded_merges = {},
                     .observer = {}});
  if (!engine.Restore(checkpoint.sync, checkpoint.step).ok()) return;
  const absl::StatusOr<SyncEngine::State> saved = engine.Save();
  FUZZ_REQUIRE(saved.ok(), std::string(saved.status().message()));
  FUZZ_REQUIRE(saved->fragments.size() == checkpoint.sync.fragments.size(), "fragments were lost");
}

void CheckCheckpoint(std::span<const uint8_t> input) {
  FaultDisk files;
  Put(files, "out/checkpoint",
      ArrayFileFromInput(input, {'C', 'W', 'A', 'Y', 'W', 'O', 'R', 'K'}, 1));
  absl::StatusOr<WorkerCheckpoint> read = worker::ReadWorkerCheckpoint(files, "out/checkpoint");
  if (!read.ok()) return;
  FUZZ_REQUIRE(worker::WriteWorkerCheckpoint(files, "out/again", *read).ok(),
               "what was read cannot be written");
  const auto again = worker::ReadWorkerCheckpoint(files, "out/again");
  FUZZ_REQUIRE(again.ok(), std::string(again.status().message()));
  FUZZ_REQUIRE(Same(*again, *read), "the checkpoint changed");
  Restore(*std::move(read), input.back() % 2 == 0);
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("worker_checkpoint", CheckCheckpoint)
