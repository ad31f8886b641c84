// Opens what `serve` was asked for: the run that its folder holds or is to hold, and its
// coordinator.
#ifndef CAUSEWAY_SERVER_OPENED_RUN_H_
#define CAUSEWAY_SERVER_OPENED_RUN_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "server/core/served_run.h"
#include "server/given_run.h"
#include "server/http/http_port.h"
#include "server/link/parent_link.h"
#include "server/region_run.h"
#include "server/link/leading.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// The flags of `serve` and `follow` that say how a run directory is kept.
RunDirectoryStore::Options StoreOptionsFromFlags();

// The flags of `serve`, checked before the run's folder is touched.
struct ServeFlags {
  std::string listen;
  std::string run_dir;
  RunDirectoryStore::Options store;
  bool model_in_memory = false;
  std::string congestion_control;
  std::optional<HttpListener> http_port;
  GivenRun given;
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
  std::unique_ptr<RegionRun> region;  // Null: the hub's.
};

// Locks and reads the folder. A region asks its parent; one whose folder holds the run waits longer
// for an answer. CANCELLED once `wait`, which waits so long, says that the process is to end.
absl::StatusOr<OpenedRun> OpenRun(FileSystem& file_system, const ServeFlags& flags,
                                  const std::function<bool(absl::Duration)>& wait);

// `options` lack the run's own part. All that is referred to outlives the result.
absl::StatusOr<std::unique_ptr<ServedRun>> MakeServedRun(FileSystem& file_system,
                                                         const ServeFlags& flags, OpenedRun& run,
                                                         const Coordinator::Options& options);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OPENED_RUN_H_
