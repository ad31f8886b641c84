#include "server/given_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/files/array_file.h"
#include "common/files/model_folder.h"
#include "common/files/safetensors.h"
#include "common/params/initialize.h"
#include "common/params/tensor_table.h"
#include "common/telemetry/log.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

absl::StatusOr<v1::RunConfig> ConfigOf(const MappedParameters& file, const std::string& path) {
  ASSIGN_OR_RETURN(v1::RunConfig config, ParseRunConfig(file.config(), path));
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(config).status(), path));
  return config;
}

constexpr absl::Duration kProgressInterval = absl::Seconds(2);

// Says how far the seed is while it takes long. Thread-safe.
class SeedProgress {
 public:
  void Add(int64_t values, int64_t all) {
    absl::MutexLock lock(&mutex_);
    done_ += values;
    const absl::Duration now = Clock::Real()->Monotonic();
    if (now < next_) return;
    next_ = now + kProgressInterval;
    Log().info("the seed has made {} of {} million parameters", done_ / 1'000'000, all / 1'000'000);
  }

 private:
  absl::Mutex mutex_;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration next_ ABSL_GUARDED_BY(mutex_) = Clock::Real()->Monotonic() + kProgressInterval;
};

// The values that a run was given, in its own plan, on the disk. Thread-safe.
class KeptParameters {
 public:
  KeptParameters(FileSystem& file_system, std::string path, const FragmentPlan& plan)
      : file_system_(file_system), path_(std::move(path)), plan_(plan) {}

  absl::Status Copy(int fragment, std::span<float> values) {
    absl::MutexLock lock(&mutex_);
    if (!file_.has_value()) {
      ASSIGN_OR_RETURN(MappedParameters file, MappedParameters::Open(file_system_, path_));
      ASSIGN_OR_RETURN(const v1::RunConfig config, ConfigOf(file, path_));
      ASSIGN_OR_RETURN(const FragmentPlan own, FragmentPlan::Create(config));
      if (own.hash() != plan_.hash() || file.size() != plan_.arena_size()) {
        return absl::DataLossError(absl::StrCat(
            path_, " is of another plan than the run's: restore the folder from a backup"));
      }
      file_ = std::move(file);
    }
    file_->Copy(plan_.range(fragment).begin, values);
    return absl::OkStatus();
  }

 private:
  FileSystem& file_system_;
  const std::string path_;
  const FragmentPlan& plan_;
  absl::Mutex mutex_;
  std::optional<MappedParameters> file_ ABSL_GUARDED_BY(mutex_);
};

bool AreSafetensors(FileSystem& file_system, const std::string& path) {
  return absl::EndsWith(path, ".safetensors") || absl::EndsWith(path, kSafetensorsIndexFile) ||
         file_system.IsFolder(path);
}

}  // namespace

absl::StatusOr<v1::RunConfig> TrainedByParameters(FileSystem& file_system,
                                                  const std::string& path) {
  v1::RunConfig trained;
  if (IsModelFolder(file_system, path)) {
    ASSIGN_OR_RETURN(v1::RunConfig config, ReadModelFile(file_system, path));
    *trained.mutable_model() = std::move(*config.mutable_model());
    return trained;
  }
  if (AreSafetensors(file_system, path)) {
    ASSIGN_OR_RETURN(const SafetensorsFolder files, OpenWeights(file_system, path));
    std::vector<std::string> names;
    for (const auto& [name, tensor] : files.tensors()) names.push_back(name);
    std::ranges::sort(names, NaturalLess);
    for (const std::string& name : names) {
      v1::TensorTable::Tensor& tensor = *trained.mutable_tensors()->add_tensor();
      tensor.set_name(name);
      const SafeTensor& from = files.tensors().at(tensor.name());
      tensor.mutable_shape()->Add(from.shape.begin(), from.shape.end());
    }
    RETURN_IF_ERROR(Annotate(CheckTensorTable(trained.tensors()), path));
    return trained;
  }
  ASSIGN_OR_RETURN(const MappedParameters file, MappedParameters::Open(file_system, path));
  ASSIGN_OR_RETURN(v1::RunConfig config, ConfigOf(file, path));
  if (config.has_tensors()) {
    *trained.mutable_tensors() = std::move(*config.mutable_tensors());
  } else {
    *trained.mutable_model() = std::move(*config.mutable_model());
  }
  return trained;
}

absl::StatusOr<std::vector<float>> ReadInitialParameters(FileSystem& file_system,
                                                         const std::string& path,
                                                         const FragmentPlan& plan) {
  ModelFolder given;
  if (IsModelFolder(file_system, path)) {
    ASSIGN_OR_RETURN(given, ReadModelFolder(file_system, path));
  } else if (AreSafetensors(file_system, path)) {
    return ReadWeights(file_system, path, plan);
  } else {
    ASSIGN_OR_RETURN(const MappedParameters file, MappedParameters::Open(file_system, path));
    ASSIGN_OR_RETURN(given.config, ConfigOf(file, path));
    given.values = file.All();
  }
  ASSIGN_OR_RETURN(const FragmentPlan own, FragmentPlan::Create(given.config));
  std::vector<float> values(static_cast<size_t>(plan.arena_size()));
  RETURN_IF_ERROR(Annotate(CopyParameters(own, given.values, plan, values), path));
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
  return KeepInitialValues(file_system, folder, path, config, values);
}

absl::Status KeepInitialValues(FileSystem& file_system, const std::string& folder,
                               const std::string& source, const v1::RunConfig& config,
                               std::span<const float> values) {
  return WriteParametersFile(file_system, JoinPath(folder, kInitialFile), {{"source", source}},
                             FormatRunConfig(config), values);
}

InitialValues InitialValuesOf(FileSystem& file_system, const std::string& folder,
                              const v1::RunConfig& config, const FragmentPlan& plan,
                              ThreadPool* threads) {
  const std::string path = JoinPath(folder, kInitialFile);
  if (file_system.Exists(path)) {
    const auto kept = std::make_shared<KeptParameters>(file_system, path, plan);
    return [kept](int fragment, std::span<float> values) { return kept->Copy(fragment, values); };
  }
  if (config.has_tensors()) {
    return [folder](int, std::span<float>) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a run of tensors begins with values that are given, and ", folder,
          " has none: give --initial=FILE.safetensors, or --initial=first-site, which lets the "
          "first site bring them"));
    };
  }
  const auto progress = std::make_shared<SeedProgress>();
  return [progress, &plan, threads, seed = config.train().seed()](int fragment,
                                                                  std::span<float> values) {
    InitializeRange(plan, seed, plan.range(fragment).begin, values, threads);
    progress->Add(std::ssize(values), plan.arena_size());
    return absl::OkStatus();
  };
}

absl::StatusOr<std::vector<float>> InitialParametersOf(FileSystem& file_system,
                                                       const std::string& folder,
                                                       const v1::RunConfig& config,
                                                       const FragmentPlan& plan) {
  const InitialValues initial = InitialValuesOf(file_system, folder, config, plan);
  std::vector<float> values(static_cast<size_t>(plan.arena_size()));
  for (int i = 0; i < plan.fragments(); ++i) {
    const FragmentRange& range = plan.range(i);
    RETURN_IF_ERROR(initial(i, std::span(values).subspan(static_cast<size_t>(range.begin),
                                                         static_cast<size_t>(range.size()))));
  }
  return values;
}

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
