// A worker of several processes with GPUs, on one machine or several, that train one replica:
// process 0 joins the run, and has its data, checkpoint, telemetry and evaluation; the others do
// their share of every step (SiteFollower). This is what process 0 has of them.
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
#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"
#include "causeway/v1/site.pb.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "worker/commands/device_choice.h"
#include "worker/member/rendezvous.h"
#include "worker/sync/backend.h"
#include "worker/sync/process_link.h"
#include "worker/sync/site_backend.h"

namespace causeway::worker {

// Between two looks at whether a signal came.
inline constexpr absl::Duration kStopPoll = absl::Milliseconds(100);

struct SiteOptions {
  SiteRendezvous rendezvous;
  DeviceChoice devices;  // ResolveShare's.
};

// One thread, but for status, told_to_stop and End.
class Site {
 public:
  // Process 0: waits for the others. FAILED_PRECONDITION, which the others hear too, if one is of
  // another build or divides gradients otherwise; errors of SiteDoor. `files` outlives the site.
  static absl::StatusOr<std::unique_ptr<Site>> Gather(const SiteOptions& options,
                                                      FileSystem& files);
  // Without End, the others end with an error.
  ~Site();

  // A backend of all processes; once. What is referred to, and the site, outlive it. `plan_file` as
  // MakeBackend's; those of the others are kept beside it.
  absl::StatusOr<std::unique_ptr<TrainingBackend>> MakeBackend(const v1::RunConfig& config,
                                                               const FragmentPlan& plan,
                                                               const std::string& plan_file);

  // The cause that has ended the site; OK: none.
  absl::Status status() const { return options_.rendezvous.cause->Get(); }
  // Another process was told to stop: this one should.
  bool told_to_stop() const { return told_to_stop_; }

  // The others end, too: as they should, or with that cause. The backend may still be there.
  void End(const absl::Status& status);

 private:
  Site(const SiteOptions& options, FileSystem& files) : options_(options), files_(files) {}
  absl::Status CompareMembers();

  const SiteOptions options_;
  FileSystem& files_;
  std::atomic<bool> told_to_stop_ = false;
  std::vector<v1::SiteMember> members_;  // By process.
  std::atomic<bool> ended_ = false;
  std::unique_ptr<SiteDoor> door_;                // Outlives the links.
  std::vector<std::unique_ptr<SiteLink>> links_;  // Links to process 1, 2, ...
};

// A process of a site other than process 0: it computes what process 0 asks for, and reads and
// writes no files. It ends when process 0 does.
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
  SiteFollower(const SiteOptions& options, FileSystem& files) : options_(options), files_(files) {}

  // Answers a call: true once training is over. Errors: the link's, and those that end the site.
  absl::StatusOr<bool> Handle(SiteCall& call);
  // Returns the matrix products.
  absl::StatusOr<std::string> Build(const SiteCall& call);
  // Returns how long to wait for the next look.
  absl::Duration WatchForStop(const std::function<bool()>& stop);

  const SiteOptions options_;
  FileSystem& files_;
  v1::SiteBuild build_;
  std::optional<FragmentPlan> plan_;
  std::atomic<bool> met_ = false;  // All processes are there.
  bool begun_ = false;
  std::unique_ptr<SiteLink> link_;
  std::unique_ptr<ShardServer> shards_;         // Once it is built; uses the link.
  std::atomic<ShardServer*> server_ = nullptr;  // The same, for the thread that receives.
};

}  // namespace causeway::worker
