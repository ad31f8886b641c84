#include "server/given_run.h"

#include <algorithm>

#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

bool SaysWhatIsTrained(const v1::RunConfig& config) {
  return config.has_model() || config.has_tensors();
}

// A path, not first-site.
bool InitialIsAFile(const GivenRun& given) {
  return !given.initial.empty() && !given.awaits_first_site();
}

}  // namespace

absl::StatusOr<CompleteConfig> LoadConfig(FileSystem& file_system, const GivenRun& given,
                                          ModelIs model) {
  if (!given.has_config()) {
    return absl::InvalidArgumentError("give the run's configuration: --config=FILE");
  }
  CompleteConfig result;
  if (!given.preset.empty()) {
    ASSIGN_OR_RETURN(result.config, RunPreset(given.preset));
  }
  v1::RunConfig trained;
  if (InitialIsAFile(given)) {
    ASSIGN_OR_RETURN(trained, TrainedByParameters(file_system, given.initial));
    if (trained.has_model()) *result.config.mutable_model() = trained.model();
  }
  const bool is_text = given.config.find('{') != std::string::npos;
  const std::string source = is_text ? "--config" : given.config;
  if (!given.config.empty()) {
    std::string text = given.config;
    if (!is_text) {
      ASSIGN_OR_RETURN(text, file_system.ReadFile(given.config));
    }
    ASSIGN_OR_RETURN(result.config, ParseRunConfig(text, source, result.config));
  }
  if (trained.has_tensors() && !SaysWhatIsTrained(result.config)) {
    *result.config.mutable_tensors() = trained.tensors();
  }
  absl::StatusOr<ConfigWarnings> warnings = CompleteRunConfig(result.config, model);
  if (!warnings.ok()) {
    return Annotate(warnings.status(), given.config.empty() ? given.preset : source);
  }
  result.warnings = *std::move(warnings);
  return result;
}

absl::Status CheckGivenRun(FileSystem& file_system, const GivenRun& given) {
  // A run that goes on knows what it trains.
  const bool may_know = file_system.Exists(JoinPath(given.run_dir, kDatabaseFile));
  ASSIGN_OR_RETURN(
      const CompleteConfig loaded,
      LoadConfig(file_system, given, may_know ? ModelIs::kStillToCome : given.model()));
  if (!InitialIsAFile(given)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(loaded.config));
  return ReadInitialParameters(file_system, given.initial, plan).status();
}

absl::StatusOr<CompleteConfig> ChooseConfig(FileSystem& file_system, const GivenRun& given,
                                            const std::optional<RecoveredRun>& recovered) {
  if (!recovered.has_value()) return LoadConfig(file_system, given, given.model());
  const v1::RunConfig& own = recovered->identity.config();
  if (!given.has_config()) return CompleteConfig{own, {}};
  ASSIGN_OR_RETURN(CompleteConfig asked, LoadConfig(file_system, given, ModelIs::kStillToCome));
  if (!SaysWhatIsTrained(asked.config)) {
    if (own.has_model()) *asked.config.mutable_model() = own.model();
    if (own.has_tensors()) *asked.config.mutable_tensors() = own.tensors();
    ASSIGN_OR_RETURN(asked.warnings, CompleteRunConfig(asked.config));
  }
  constexpr size_t kReadable = 2000;  // Two tables of tensors may differ in every line.
  const std::string difference = ConfigDifference(own, asked.config).substr(0, kReadable);
  if (difference.empty()) return asked;
  return absl::FailedPreconditionError(absl::StrCat(
      "the run ", recovered->identity.run_id(), " in ", given.run_dir,
      " has another configuration than the one given: ", difference,
      "; leave --config and --preset out to continue it, or choose another --run_dir"));
}

absl::StatusOr<InitialValues> ChooseInitialValues(FileSystem& file_system, const GivenRun& given,
                                                  const FragmentPlan& plan,
                                                  const v1::RunConfig& config, bool resumes,
                                                  ThreadPool& threads) {
  const std::string path = InitialIsAFile(given) ? given.initial : "";
  if (!resumes) {
    RETURN_IF_ERROR(KeepInitialParameters(file_system, given.run_dir, path, config, plan));
  }
  InitialValues initial =
      InitialValuesOf(file_system, given.run_dir, config, plan, resumes ? nullptr : &threads);
  if (!resumes || path.empty()) return initial;
  ASSIGN_OR_RETURN(const std::vector<float> others, ReadInitialParameters(file_system, path, plan));
  for (int i = 0; i < plan.fragments(); ++i) {
    const FragmentRange& range = plan.range(i);
    std::vector<float> values(static_cast<size_t>(range.size()));
    RETURN_IF_ERROR(initial(i, values));
    if (std::ranges::equal(
            values, std::span(others).subspan(static_cast<size_t>(range.begin), values.size()))) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("the run in ", given.run_dir, " began with other parameters than those of ",
                     path, "; leave --initial out to continue it, or choose another --run_dir"));
  }
  return initial;
}

}  // namespace causeway::server
