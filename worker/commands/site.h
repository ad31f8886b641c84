// A worker of several processes, on one machine or several, that train one replica: process 0 joins
// the run, and has its data, checkpoint, telemetry and evaluation; the others do their share of
// every step (SiteFollower). This is what process 0 has of them.
//
// Whatever ends one of the processes ends all, with one cause; the worker then continues from its
// checkpoint when all are started again. With a secret they speak TLS, else their network is
// trusted (SECURITY.md).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/cpu_site.h"
#include "worker/commands/device_choice.h"
#include "worker/member/rendezvous.h"
#include "worker/sync/backend.h"
#include "worker/sync/local_group.h"
#include "worker/sync/process_link.h"
#include "worker/sync/site_backend.h"
#include "worker/sync/site_calls.h"

namespace causeway::worker {

// Between two looks at whether a signal came.
inline constexpr absl::Duration kStopPoll = absl::Milliseconds(100);

struct SiteOptions {
  LaunchEnvironment launch;
  std::string worker_id;
  std::string coordinator;
  DeviceChoice devices;  // Resolved: those of this process.
  int threads = 1;
  absl::Duration patience = absl::Minutes(10);  // That all have to come together.
  std::string secret;  // Which all processes of the site know; empty: none.
};

// The token by which the processes of one worker find each other.
uint64_t SiteToken(const SiteOptions& options);

// A process's word on itself.
struct SiteMember {
  std::string program;  // Which build: equal for all.
  std::string device;   // "cpu" or "cuda".
  int gpus = 0;
  bool shard_gradients = false;  // On GPUs: equal for all.
  int threads = 0;

  static absl::StatusOr<SiteMember> OfThisProcess(const SiteOptions& options, FileSystem& files);
  std::string ToJson() const;
  static absl::StatusOr<SiteMember> FromJson(const std::string& text);
};

// The file of measured matrix products that is kept for a process, beside that of process 0.
std::string PlanFileOf(const std::string& plan_file, int process);

// One thread, but for status, told_to_stop and End.
class Site {
 public:
  // Process 0: waits for the others. FAILED_PRECONDITION, which the others hear too, if one is of
  // another build, computes on other devices or divides gradients otherwise; errors of SiteDoor.
  static absl::StatusOr<std::unique_ptr<Site>> Gather(const SiteOptions& options,
                                                      FileSystem& files);
  // Without End, the others end with an error.
  ~Site();

  // A backend of all processes; once. What is referred to, and the site, outlive it. `plan_file` as
  // MakeBackend's; those of the others are kept beside it.
  absl::StatusOr<std::unique_ptr<TrainingBackend>> MakeBackend(const v1::RunConfig& config,
                                                               const FragmentPlan& plan,
                                                               ThreadPool* pool, FileSystem& files,
                                                               const std::string& plan_file);

  // The cause that has ended the site; OK: none.
  absl::Status status() const { return cause_->Get(); }
  // Another process was told to stop: this one should.
  bool told_to_stop() const { return told_to_stop_; }

  // The others end, too: as they should, or with that cause. The backend may still be there.
  void End(const absl::Status& status);

 private:
  Site(const SiteOptions& options, std::shared_ptr<SharedCause> cause);
  absl::Status CompareMembers(FileSystem& files);
  // Tells each its ranks, and what else it needs, does `own`, and waits for them.
  absl::Status Build(const v1::RunConfig& config, const std::string& group_id,
                     const std::function<absl::Status()>& own);
  absl::StatusOr<std::unique_ptr<TrainingBackend>> MakeGpuBackend(const v1::RunConfig& config,
                                                                  const FragmentPlan& plan,
                                                                  FileSystem& files,
                                                                  const std::string& plan_file);
  int processes() const { return options_.launch.processes; }
  // The ranks of process 0, 1, ...; on CPUs each is one.
  std::vector<RankRange> Ranks() const;

  const SiteOptions options_;
  const std::shared_ptr<SharedCause> cause_;
  std::atomic<bool> told_to_stop_ = false;
  std::vector<SiteMember> members_;  // By process.
  std::vector<std::string> plans_;   // Matrix products, by process.
  std::atomic<bool> ended_ = false;
  std::unique_ptr<SiteDoor> door_;                // Outlives the links.
  std::vector<std::unique_ptr<SiteLink>> links_;  // Links to process 1, 2, ...
};

// A process of a site other than process 0 (site.h): it computes what process 0 asks for, and reads
// and writes no files. It ends when process 0 does.

class SiteFollower {
 public:
  // Waits for process 0. Errors of VisitSite. `files` outlives the follower.
  static absl::StatusOr<std::unique_ptr<SiteFollower>> Join(const SiteOptions& options,
                                                            FileSystem& files);
  ~SiteFollower();

  // Does what process 0 says, until it says that training is over. Once `stop` returns true, which
  // another thread asks a few times a second, process 0 hears that it should stop. Errors: what
  // has ended the site, here or elsewhere.
  absl::Status Follow(const std::function<bool()>& stop);

  // Whether it has had a step to do.
  bool begun() const { return begun_; }

 private:
  SiteFollower(const SiteOptions& options, FileSystem& files);

  // Answers a call: true once training is over. Errors: the link's, and those that end the site.
  absl::StatusOr<bool> Handle(SiteCall& call);
  absl::Status Serve(SiteCall& call);
  absl::StatusOr<std::string> Build(const SiteCall& call);
  void WatchForStop(const std::function<bool()>& stop);

  const SiteOptions options_;
  FileSystem& files_;
  const std::shared_ptr<SharedCause> cause_;
  ThreadPool pool_;
  v1::RunConfig config_;
  std::optional<FragmentPlan> plan_;
  std::string plans_;              // Matrix products.
  std::atomic<bool> met_ = false;  // All processes are there.
  bool begun_ = false;
  absl::Mutex ended_mutex_;
  bool ended_ ABSL_GUARDED_BY(ended_mutex_) = false;  // For the watcher.
  absl::Mutex servers_mutex_;
  std::unique_ptr<SiteLink> link_;
  // One of them, once it is built; they use the link.
  std::unique_ptr<StepServer> steps_;
  std::unique_ptr<ShardServer> shards_ ABSL_GUARDED_BY(servers_mutex_);
};

}  // namespace causeway::worker
