// Opens what `serve` was asked for: the run that its folder holds or is to hold, and its
// coordinator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "server/core/coordinator.h"
#include "server/core/served_run.h"
#include "server/given_run.h"
#include "server/link/leading.h"
#include "server/link/parent_link.h"
#include "server/service/coordinator_server.h"
#include "server/store/run_directory_store.h"
#include "server/store/store.h"
#include "server/views/status_page.h"

namespace causeway::server {

// Reads and checks what flags say of a parent. INVALID_ARGUMENT where they contradict themselves or
// the run that is asked for. Without an address: there is no parent.
absl::StatusOr<ParentOptions> ParentFromFlags(const GivenRun& given);

// Asks the parent, to which the result has not attached yet. Where the folder holds the run it
// waits a minute for an answer: CANCELLED once `wait`, which waits so long, says that the process
// is to end. FAILED_PRECONDITION if the folder holds another run than the parent serves.
absl::StatusOr<std::unique_ptr<ParentLink>> OpenRegion(
    const ParentOptions& options, const std::string& run_dir,
    const std::optional<RecoveredRun>& recovered, const std::function<bool(absl::Duration)>& wait);

// Fetches the values that the parent's run begins with, and keeps them in the folder.
// FAILED_PRECONDITION if the run has published a round: a region is there from the first one on.
absl::Status FetchInitialParameters(FileSystem& file_system, const std::string& run_dir,
                                    const ParentLink& region);

// The flags of `serve` and `follow` that say how a run directory is kept.
RunDirectoryStore::Options StoreOptionsFromFlags();

// The flags of `serve`, checked before the run's folder is touched.
struct ServeFlags {
  GivenRun given;
  CoordinatorServer::Options server;  // Without its events, and who else serves there.
  std::string congestion_control;
  std::optional<HttpListener> http_port;
  std::optional<Leading::Options> shared;
  ParentOptions parent;  // Without an address: this is the hub.
};

// A run's folder, and what it holds or is to hold.
struct OpenedRun {
  std::unique_ptr<RunDirectoryStore> store;
  std::optional<RecoveredRun> recovered;  // Taken by the coordinator.
  bool resumes = false;
  bool replicated = false;    // Workers are told what standbys have.
  bool awaits_model = false;  // A new run; one that has begun has a model.
  v1::RunConfig config;
  std::string run_id;
  std::unique_ptr<ParentLink> region;  // Null: the hub's.
};

// Locks and reads the folder. A region asks its parent; one whose folder holds the run waits longer
// for an answer. CANCELLED once `wait`, which waits so long, says that the process is to end.
absl::StatusOr<OpenedRun> OpenRun(FileSystem& file_system, const ServeFlags& flags,
                                  const std::function<bool(absl::Duration)>& wait);

// `options` lack the run's own part. All that is referred to outlives the result.
absl::StatusOr<std::unique_ptr<ServedRun>> MakeServedRun(FileSystem& file_system,
                                                         const ServeFlags& flags, OpenedRun& run,
                                                         const Coordinator::Options& options);

// A run that several machines share: the flags of `serve --etcd`.

// Nothing without --etcd. INVALID_ARGUMENT says what is missing. A region asks its parent for the
// run's name. `events` and `notes` are still to be set.
absl::StatusOr<std::optional<Leading::Options>> SharedRunFromFlags(FileSystem& file_system,
                                                                   const GivenRun& given,
                                                                   const ParentOptions& parent);

}  // namespace causeway::server
