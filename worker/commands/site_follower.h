// A process of a site other than process 0 (site.h): it computes what process 0 asks for, and reads
// and writes no files. It ends when process 0 does.
#ifndef CAUSEWAY_WORKER_COMMANDS_SITE_FOLLOWER_H_
#define CAUSEWAY_WORKER_COMMANDS_SITE_FOLLOWER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/cpu_site.h"
#include "worker/sync/site_backend.h"
#include "worker/commands/site.h"
#include "worker/sync/local_group.h"
#include "worker/sync/process_link.h"

namespace causeway::worker {

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

#endif  // CAUSEWAY_WORKER_COMMANDS_SITE_FOLLOWER_H_
