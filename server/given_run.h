// The run that `causeway-coordinator` was asked for, beside what its folder holds.
#ifndef CAUSEWAY_SERVER_GIVEN_RUN_H_
#define CAUSEWAY_SERVER_GIVEN_RUN_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "server/core/coordinator.h"
#include "server/store/store.h"

namespace causeway::server {

// The value of --initial that lets the first site that joins bring the model.
inline constexpr char kFirstSite[] = "first-site";

// The command line.
struct GivenRun {
  std::string config;  // A file, or empty.
  std::string preset;
  std::string initial;  // A file, a folder, kFirstSite or empty.
  std::string run_dir;

  bool has_config() const { return !config.empty() || !preset.empty(); }
  bool awaits_first_site() const { return initial == kFirstSite; }
};

struct CompleteConfig {
  v1::RunConfig config;
  ConfigWarnings warnings;
};

// The preset, the file over it, and the model of --initial where both leave it out.
// INVALID_ARGUMENT and what reading a file may end with.
absl::StatusOr<CompleteConfig> LoadConfig(FileSystem& file_system, const GivenRun& given,
                                          ModelIs model);

// Whether what was given can be a run, the parameters to start from included. Touches nothing.
absl::Status CheckGivenRun(FileSystem& file_system, const GivenRun& given);

// The configuration of the run in the folder, or the one asked for if there is none yet. Both must
// be the same if both are there (FAILED_PRECONDITION); one that leaves out what is trained takes it
// from the run. Without `model` and `tensors` only where the first site is to bring them.
absl::StatusOr<CompleteConfig> ChooseConfig(FileSystem& file_system, const GivenRun& given,
                                            const std::optional<RecoveredRun>& recovered);

// The initial values. A run that begins keeps those of --initial, and makes others on these
// threads, which nobody else uses meanwhile; one that goes on refuses others than it began with.
// `plan` outlives the result.
absl::StatusOr<InitialValues> ChooseInitialValues(FileSystem& file_system, const GivenRun& given,
                                                  const FragmentPlan& plan,
                                                  const v1::RunConfig& config, bool resumes,
                                                  ThreadPool& threads);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_GIVEN_RUN_H_
