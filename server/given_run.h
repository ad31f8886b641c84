// The run that `causeway-coordinator` was asked for, beside what its folder holds.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "server/core/coordinator.h"
#include "server/store/store.h"

namespace causeway::server {

// The parameters that a run begins with: made from its seed, or given to it.

// Returns what the parameters in `path` are of: a configuration with `model` or `tensors` and
// nothing else. `path` is a model's folder (common/files/model_folder.h), a parameters file
// (common/files/array_file.h), one *.safetensors, or a folder as SafetensorsFolder reads it
// (its index stands for the folder). Safetensors alone have `tensors`, in the natural order of
// their names: their writers sort them. INVALID_ARGUMENT for a
// tensor that is neither F32 nor BF16 nor F16.
absl::StatusOr<v1::RunConfig> TrainedByParameters(FileSystem& file_system, const std::string& path);

// Reads such parameters into the plan of a run. INVALID_ARGUMENT, with the tensor's name and both
// shapes, if the run has other tensors, and for a value that is not finite; errors of
// MappedParameters::Open and SafetensorsFile.
absl::StatusOr<std::vector<float>> ReadInitialParameters(FileSystem& file_system,
                                                         const std::string& path,
                                                         const FragmentPlan& plan);

// For a run that begins in `folder`: keeps the parameters of `path` there or, if `path` is empty,
// removes what an earlier attempt kept. Returns once that is durable.
absl::Status KeepInitialParameters(FileSystem& file_system, const std::string& folder,
                                   const std::string& path, const v1::RunConfig& config,
                                   const FragmentPlan& plan);

// Keeps these, which are in the run's plan. `source` says where they are from, for people.
absl::Status KeepInitialValues(FileSystem& file_system, const std::string& folder,
                               const std::string& source, const v1::RunConfig& config,
                               std::span<const float> values);

// The values with which the run in `folder` begins, fragment by fragment, so that no more than one
// need be in memory: those that were kept, read and checked when they are first asked for, or what
// the seed makes. FAILED_PRECONDITION, when they are asked for, for a run of tensors if nothing was
// kept: no seed makes those. `plan` outlives the result. With `threads`, which nobody else uses
// meanwhile, it is asked for one fragment at a time.
InitialValues InitialValuesOf(FileSystem& file_system, const std::string& folder,
                              const v1::RunConfig& config, const FragmentPlan& plan,
                              ThreadPool* threads = nullptr);

// All of them, in arena order.
absl::StatusOr<std::vector<float>> InitialParametersOf(FileSystem& file_system,
                                                       const std::string& folder,
                                                       const v1::RunConfig& config,
                                                       const FragmentPlan& plan);

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
  // Tells it of a run that begins.
  ModelIs model() const { return awaits_first_site() ? ModelIs::kStillToCome : ModelIs::kGiven; }
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
