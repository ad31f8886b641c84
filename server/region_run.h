// The run of a region: its parent's, beside what the region's own folder holds.
#ifndef CAUSEWAY_SERVER_REGION_RUN_H_
#define CAUSEWAY_SERVER_REGION_RUN_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "server/core/coordinator.h"
#include "server/given_run.h"
#include "server/link/parent_link.h"
#include "server/store/store.h"

namespace causeway::server {

struct RegionRun {
  ParentOptions options;
  ReachedParent parent;
  FragmentPlan plan;
  std::vector<std::string> above;  // The regions above it, from the hub down.
};

// Reads what flags say of a parent.
ParentOptions ParentFromFlags();

// Checks what flags say of a parent. INVALID_ARGUMENT where they contradict themselves or the
// run that is asked for. Without an address: there is no parent.
absl::StatusOr<ParentOptions> CheckParentOptions(ParentOptions parent, const GivenRun& given,
                                                 const std::string& listen);

// Asks the parent. Where the folder holds the run it waits a minute for an answer: CANCELLED once
// `wait`, which waits so long, says that the process is to end. FAILED_PRECONDITION if the folder
// holds another run than the parent serves.
absl::StatusOr<std::unique_ptr<RegionRun>> OpenRegion(
    const ParentOptions& options, const std::string& run_dir,
    const std::optional<RecoveredRun>& recovered, const std::function<bool(absl::Duration)>& wait);

// Fetches the values that the parent's run begins with, and keeps them in the folder.
// FAILED_PRECONDITION if the run has published a round: a region is there from the first one on.
absl::Status FetchInitialParameters(FileSystem& file_system, const std::string& run_dir,
                                    const RegionRun& region);

// The region's link to its parent, which `options` get with what else makes a coordinator a
// region's. `region` and the events of `options` outlive it.
std::unique_ptr<ParentLink> LinkToParent(const RegionRun& region, Coordinator::Options& options);

// The region stops: what its last sites have left is closed, goes up, and the parent is told that
// it is done, if it is.
void StopUnderParent(Coordinator& region, ParentLink& parent);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_REGION_RUN_H_
