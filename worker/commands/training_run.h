// A worker's part in a run, from the join to the good-bye: the loop around its membership
// (worker/member/run_member.h) and its Trainer, with checkpoints and evaluations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "worker/commands/device_choice.h"
#include "worker/commands/site.h"
#include "worker/data/dataset.h"
#include "worker/member/run_member.h"
#include "worker/model/worker_checkpoint.h"
#include "worker/train/trainer.h"

namespace causeway::worker {

struct TrainingOptions {
  MemberOptions member;  // Its output, which is required, has summary and checkpoint, too.
  std::string data;      // Folder of shards.
  ShardFormat shard_format = ShardFormat::kDetect;  // Where no data.json says it.
  DeviceChoice devices;
  Site* site =
      nullptr;  // The other processes of this worker; null: there are none. Outlives the run.
  absl::Duration checkpoint_interval = absl::Minutes(10);  // Zero: at the end only.
  // With train.document_masking, of data that do not say where documents begin.
  std::optional<DocumentMark> document_mark;
  int sample_tokens = 0;  // The worker in data slot 0 generates so many at the end.
  absl::Duration drain_timeout = absl::Seconds(20);
  double max_tokens_per_second = 0;  // Train no faster; 0: as fast as it goes.
  // An inner step takes at least so long, as if the device were slower: for experiments.
  absl::Duration min_step_time = absl::ZeroDuration();
};

// Not thread-safe.
class TrainingRun {
 public:
  // Everything that can be refused is refused here: nothing has been trained yet.
  static absl::StatusOr<std::unique_ptr<TrainingRun>> Join(const TrainingOptions& options,
                                                           FileSystem& file_system, Clock& clock);
  ~TrainingRun();

  // Trains until the budget is spent, a drain is ordered or `stop` returns true, which is asked a
  // few times a second by another thread. A drain, whoever orders it, finishes the step and hands
  // over the deltas in flight; what cannot be handed over within drain_timeout stays in the
  // checkpoint.
  absl::Status Train(const std::function<bool()>& stop);

 private:
  TrainingRun(const TrainingOptions& options, std::unique_ptr<RunMember> member,
              FileSystem& file_system, Clock& clock, Dataset dataset);

  absl::Status OpenOutput();
  absl::StatusOr<std::optional<WorkerCheckpoint>> ReadCheckpoint();
  absl::Status OpenBackend(const DeviceChoice& devices);
  // Makes the member's hooks into this run. `checkpoint` may be null; it outlives Begin.
  RunMember::Hooks MakeHooks(const WorkerCheckpoint* checkpoint);
  absl::Status TrainSteps();
  // Looks for `stop` and for the coordinator's word; returns how long to wait for the next look.
  absl::Duration WatchForStop(const std::function<bool()>& stop);
  // The cause that has ended this worker's other processes.
  absl::Status SiteStatus() const;
  absl::Status StepOnce();
  absl::Status Evaluate();
  // `must`: an error if it cannot be written; else the one before it stands, and an event says so.
  absl::Status Checkpoint(bool must);
  absl::Status Finish();
  absl::Status WriteSummary();
  // Sleeps as long as max_tokens_per_second asks after a step of so many tokens.
  void Throttle(int64_t tokens, absl::Duration step_time);
  bool WritesCheckpoints() const { return options_.checkpoint_interval > absl::ZeroDuration(); }
  bool EvaluatesHere() const { return member_->data_slot() == 0; }
  std::string CheckpointPath() const { return JoinPath(options_.member.output, "checkpoint"); }
  std::string Sample();
  const v1::RunConfig& config() const { return member_->config(); }

  const TrainingOptions options_;
  FileSystem& file_system_;
  Clock& clock_;
  const Dataset dataset_;
  std::unique_ptr<FolderLock> output_lock_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<TrainingBackend> backend_;  // Until the trainer has it.
  std::unique_ptr<Trainer> trainer_;
  // Its engine works on the trainer's replica, so after it.
  const std::unique_ptr<RunMember> member_;
  bool drained_ = false;
  bool told_to_stop_ = false;  // Known to the watcher alone.
  absl::Duration last_checkpoint_;
};

}  // namespace causeway::worker
