// A worker's part in a run, from the join to the good-bye: the loop around Trainer and SyncEngine,
// with its measurements, checkpoints and log.
#ifndef CAUSEWAY_WORKER_COMMANDS_TRAINING_RUN_H_
#define CAUSEWAY_WORKER_COMMANDS_TRAINING_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/expiry_watch.h"
#include "common/rpc/security.h"
#include "common/rpc/socket_buffers.h"
#include "common/telemetry/event_log.h"
#include "worker/commands/device_flag.h"
#include "worker/commands/site.h"
#include "worker/data/choice_task.h"
#include "worker/data/dataset.h"
#include "worker/io/merge_record.h"
#include "worker/io/worker_checkpoint.h"
#include "worker/link/grpc_exchange.h"
#include "worker/link/link.h"
#include "worker/link/session.h"
#include "worker/sync/sync_engine.h"
#include "worker/telemetry/run_telemetry.h"
#include "worker/train/step_counter.h"
#include "worker/train/trainer.h"

namespace causeway::worker {

struct TrainingOptions {
  std::string coordinator;   // HOST:PORT
  SecurityOptions security;  // Of the link to it.
  std::string worker_id;
  std::string data;                                 // Folder of shards.
  ShardFormat shard_format = ShardFormat::kDetect;  // Where no data.json says it.
  bool own_data = false;        // Nobody else has them: all of them are this worker's part.
  std::string output;           // Folder for metrics, summary and checkpoint; created if need be.
  std::string metrics_address;  // HOST:PORT for Prometheus; empty: none.
  std::string metrics_address_file;  // Receives it once it is served.
  std::string tensorboard;           // Folder of curves, a subfolder for each worker; empty: none.
  int threads = 1;
  DeviceChoice devices;
  Site* site =
      nullptr;  // The other processes of this worker; null: there are none. Outlives the run.
  absl::Duration connect_timeout = absl::Seconds(30);
  // For bulk transfers, beside the session's; 0: as many as help, from 4 to 16.
  int connections = 0;
  // A record of merges to repeat (merge_record.h); empty: none.
  std::string replay_merges;
  int64_t max_upload_bytes_per_second = 0;  // 0: no limit. Of this worker's fragments.
  int64_t max_download_bytes_per_second = 0;
  // Of the connections to the coordinator (tcp_links.h); empty: the system's.
  std::string congestion_control;
  absl::Duration checkpoint_interval = absl::Minutes(10);  // Zero: at the end only.
  // With train.document_masking, of data that do not say where documents begin.
  std::optional<DocumentMark> document_mark;
  // Multiple-choice tasks that this worker evaluates the published parameters on: before the first
  // step and every so many (0: neither), and at the end.
  std::vector<std::string> eval_tasks;
  int64_t eval_tasks_every = 0;
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
  struct Progress {
    int64_t step = 0;
    int64_t first_step = 0;                                 // Of this process.
    int64_t inner_steps = 0;                                // Of this process.
    absl::Duration inner_step_time = absl::ZeroDuration();  // Smoothed; zero: not known yet.
    int64_t checkpoint_step = -1;                           // -1: there is none.
    int64_t tokens = 0;  // Of this worker in the run, checkpoints included.
    int64_t first_tokens = 0;
    double loss = 0;
    absl::Duration compute = absl::ZeroDuration();
    absl::Duration evaluation = absl::ZeroDuration();
    absl::Duration start;          // Monotonic, at the first step.
    double tokens_per_second = 0;  // Over the last seconds.
    std::optional<double> initial_loss;
    std::optional<double> eval_loss;
  };

  TrainingRun(const TrainingOptions& options, ChannelSecurity security, FileSystem& file_system,
              Clock& clock, v1::DescribeResponse run, FragmentPlan plan, Dataset dataset);

  absl::Status OpenOutput();
  absl::Status OpenBackend(const DeviceChoice& devices);
  // With sync.max_overlap_steps. `anew`: there is no checkpoint.
  absl::Status OpenMergeRecord(bool anew);
  void RecordMerge(const RecordedMerge& merge);
  absl::Status ReadTasks();
  // Continues from the checkpoint in the output folder, or from the published state.
  absl::Status Begin(std::optional<WorkerCheckpoint> checkpoint);
  absl::Status MakeLink();
  // An exchange and an engine that have seen nothing yet.
  absl::Status MakeSync();
  // Takes the published state and goes on where the run is, drawing from `next_draw` on.
  absl::Status StartAnew(const v1::Welcome& welcome, int64_t next_draw);
  // Draws another part of the data if the coordinator says so.
  absl::Status ObeyDataSlot(const Session::Orders& orders);
  // What the trainer and the record of draws call the part.
  int DataPart() const { return options_.own_data ? kOwnData : data_slot_; }
  void CancelExchange();
  absl::Status OpenMetrics();
  absl::Status TrainSteps();
  // Waits for `stop`, for the coordinator's word or for the end of training.
  void WatchForStop(const std::function<bool()>& stop);
  // What has ended this worker's other processes.
  absl::Status SiteStatus() const;
  // True once training ended, within that time.
  bool AwaitEnd(absl::Duration timeout);
  // One inner step, which ends at `end` at the latest.
  absl::Status StepOnce(int64_t end);
  void ObeyPace(const Session::Orders& orders);
  void NoteStepTime(absl::Duration step_time);
  // Steps of the schedule that an inner step may advance by.
  int MaxAdvance() const;
  absl::Status Evaluate();
  absl::Status EvaluateTasks();
  absl::Status Checkpoint();
  absl::Status Finish();
  absl::Status WriteSummary();
  void Report(const StepReport& report, absl::Duration step_time);
  void LogProgress(absl::Duration now);
  // To metrics over HTTP and the curves.
  void ShowFigures(const StepReport& report);
  void WatchCertificate();
  // Says once, when the link has been measured, if the kernel's buffers hold it down.
  // Warns once if the system's socket buffers are what limits the link.
  void JudgeBuffers();
  // Sleeps as long as max_tokens_per_second asks after a step of so many tokens.
  void Throttle(int64_t tokens, absl::Duration step_time);
  bool WritesCheckpoints() const { return options_.checkpoint_interval > absl::ZeroDuration(); }
  bool EvaluatesHere() const { return data_slot_ == 0; }
  double Utilization() const;
  std::string CheckpointPath() const { return JoinPath(options_.output, "checkpoint"); }
  std::string Sample();

  struct Task {
    std::string path;
    std::vector<ChoiceExample> examples;
    nlohmann::json result;  // The last; null: none yet.
  };

  const TrainingOptions options_;
  const ChannelSecurity security_;
  ExpiryWatch expiry_;
  FileSystem& file_system_;
  Clock& clock_;
  const v1::DescribeResponse run_;
  const FragmentPlan plan_;
  const Dataset dataset_;
  std::unique_ptr<FolderLock> output_lock_;
  std::unique_ptr<JsonLinesFile> metrics_;
  std::unique_ptr<RunTelemetry> telemetry_;  // The session's and the engine's, so before them.
  std::unique_ptr<ThreadPool> pool_;
  std::shared_ptr<grpc::Channel> session_channel_;
  std::unique_ptr<v1::Session::Stub> session_stub_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<TrainingBackend> backend_;  // Until the trainer has it.
  std::unique_ptr<Trainer> trainer_;
  // Replaced by MakeSync, on the training thread alone; others cancel it, under the mutex.
  absl::Mutex exchange_mutex_;
  std::unique_ptr<GrpcExchange> exchange_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<SyncEngine> sync_;
  std::unique_ptr<MergeRecord> merge_record_;   // Null: no overlap that gives way.
  std::vector<RecordedMerge> recorded_merges_;  // To be repeated.
  absl::Status merges_recorded_;
  std::vector<Task> tasks_;
  int data_slot_ = 0;
  StepCounter counter_;
  Progress progress_;
  v1::Heartbeat heartbeat_;  // The last one that the session was given.
  bool drained_ = false;
  bool anew_ = true;  // Begun from the published state, not from a checkpoint.
  absl::Mutex ended_mutex_;
  bool ended_ ABSL_GUARDED_BY(ended_mutex_) = false;  // Training, for the watcher.
  // Of the training phase, evaluations excepted; zero if no step was trained.
  absl::Duration wall_;
  absl::Duration last_checkpoint_;
  absl::Duration last_line_;
  int64_t last_line_tokens_ = 0;
  std::optional<SocketBuffers> socket_buffers_;  // None: not known, or warned about.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_COMMANDS_TRAINING_RUN_H_
