#include "server/initial_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/files/parameters_file.h"
#include "common/params/copy_parameters.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kProgressInterval = absl::Seconds(2);

absl::StatusOr<v1::RunConfig> ConfigOf(const ParametersFile& file, const std::string& path) {
  ASSIGN_OR_RETURN(v1::RunConfig config, ParseRunConfig(file.config, path));
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(config).status(), path));
  return config;
}

}  // namespace

absl::StatusOr<v1::ModelConfig> ModelOfParameters(FileSystem& file_system,
                                                  const std::string& path) {
  ASSIGN_OR_RETURN(const ParametersFile file, ReadParametersFile(file_system, path));
  ASSIGN_OR_RETURN(const v1::RunConfig config, ConfigOf(file, path));
  return config.model();
}

absl::StatusOr<std::vector<float>> ReadInitialParameters(FileSystem& file_system,
                                                         const std::string& path,
                                                         const FragmentPlan& plan) {
  ASSIGN_OR_RETURN(const ParametersFile file, ReadParametersFile(file_system, path));
  ASSIGN_OR_RETURN(const v1::RunConfig config, ConfigOf(file, path));
  ASSIGN_OR_RETURN(const FragmentPlan own, FragmentPlan::Create(config.model(), config.sync()));
  std::vector<float> values(static_cast<size_t>(plan.arena_size()));
  RETURN_IF_ERROR(Annotate(CopyParameters(own, file.values, plan, values), path));
  return values;
}

absl::Status KeepInitialParameters(FileSystem& file_system, const std::string& folder,
                                   const std::string& path, const v1::RunConfig& config,
                                   const FragmentPlan& plan) {
  const std::string kept = JoinPath(folder, kInitialFile);
  if (path.empty()) {
    if (!file_system.Exists(kept)) return absl::OkStatus();
    RETURN_IF_ERROR(file_system.Remove(kept));
    return file_system.SyncFolder(folder);
  }
  ASSIGN_OR_RETURN(const std::vector<float> values, ReadInitialParameters(file_system, path, plan));
  return WriteParametersFile(file_system, kept, {{"source", path}}, FormatRunConfig(config),
                             values);
}

absl::StatusOr<std::vector<float>> InitialParametersOf(FileSystem& file_system,
                                                       const std::string& folder,
                                                       const v1::RunConfig& config,
                                                       const FragmentPlan& plan,
                                                       ThreadPool* threads) {
  const std::string kept = JoinPath(folder, kInitialFile);
  if (file_system.Exists(kept)) return ReadInitialParameters(file_system, kept, plan);
  std::vector<float> values(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(
      plan, config.train().seed(), values, threads,
      [next = Clock::Real()->Monotonic() + kProgressInterval](int64_t done, int64_t total) mutable {
        const absl::Duration now = Clock::Real()->Monotonic();
        if (now < next) return;
        next = now + kProgressInterval;
        Log().info("the seed has made {} of {} million parameters", done / 1'000'000,
                   total / 1'000'000);
      });
  return values;
}

}  // namespace causeway::server
