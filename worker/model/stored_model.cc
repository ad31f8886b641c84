#include "worker/model/stored_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/files/array_file.h"
#include "common/files/json.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/files/model_folder.h"
#include "worker/model/worker_checkpoint.h"

namespace causeway::worker {
namespace {

constexpr ArrayFileKind kSnapshotKind = {'C', 'W', 'A', 'Y', 'S', 'N', 'A', 'P'};
constexpr uint32_t kSnapshotVersion = 1;
// The owner removes old snapshots after it has written new ones.
constexpr int kTries = 10;

absl::StatusOr<StoredModel> ReadParameters(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(ParametersFile file, ReadParametersFile(file_system, path));
  StoredModel stored;
  ASSIGN_OR_RETURN(stored.config, ParseRunConfig(file.config, path));
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(stored.config).status(), path));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  if (static_cast<int64_t>(file.values.size()) != plan.arena_size()) {
    return absl::DataLossError(absl::StrCat(path, " contradicts itself: it has ",
                                            file.values.size(), " values, its configuration takes ",
                                            plan.arena_size()));
  }
  stored.parameters = std::move(file.values);
  return stored;
}

struct SnapshotName {
  std::string file;
  int64_t version = -1;
};

// "000000000049-f2-v7.snapshot": fragment 2, version 7. False for other names.
bool ParseName(absl::string_view name, int& fragment, int64_t& version) {
  if (!absl::ConsumeSuffix(&name, ".snapshot")) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  if (parts.size() != 3) return false;
  absl::string_view f = parts[1];
  absl::string_view v = parts[2];
  return absl::ConsumePrefix(&f, "f") && absl::ConsumePrefix(&v, "v") &&
         absl::SimpleAtoi(f, &fragment) && absl::SimpleAtoi(v, &version) && version >= 0;
}

absl::Status ReadSnapshot(FileSystem& file_system, const std::string& path, int fragment,
                          int64_t version, std::span<float> out) {
  ASSIGN_OR_RETURN(const ArrayFile file,
                   ArrayFile::Read(file_system, path, kSnapshotKind, kSnapshotVersion));
  int found_fragment = -1;
  int64_t found_version = -1;
  const nlohmann::json& metadata = file.metadata();
  if (!metadata.is_object() || !metadata.contains("fragment") || !metadata.contains("version") ||
      !ReadInteger(metadata["fragment"], found_fragment) ||
      !ReadInteger(metadata["version"], found_version) || found_fragment != fragment ||
      found_version != version) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: it is not what its name says"));
  }
  return file.CopyTo("published", out);
}

absl::StatusOr<StoredModel> ReadPublishedOnce(FileSystem& file_system, const std::string& folder) {
  const std::string config_path = JoinPath(folder, "config.textproto");
  StoredModel stored;
  ASSIGN_OR_RETURN(const std::string text, file_system.ReadFile(config_path));
  ASSIGN_OR_RETURN(stored.config, ParseRunConfig(text, config_path));
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(stored.config).status(), config_path));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  const std::string snapshots = JoinPath(folder, "snapshots");
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system.List(snapshots));
  std::map<int, SnapshotName> latest;
  for (const std::string& name : names) {
    int fragment = -1;
    int64_t version = -1;
    if (!ParseName(name, fragment, version)) continue;
    SnapshotName& best = latest[fragment];
    if (version > best.version) best = {name, version};
  }
  stored.parameters.resize(static_cast<size_t>(plan.arena_size()));
  for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
    const auto found = latest.find(fragment);
    if (found == latest.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          folder, " has no saved state of fragment ", fragment,
          " yet: the coordinator saves one every --snapshot_every_rounds rounds and when it stops; "
          "try again later, or give a worker's --checkpoint"));
    }
    const FragmentRange& range = plan.range(fragment);
    RETURN_IF_ERROR(ReadSnapshot(
        file_system, JoinPath(snapshots, found->second.file), fragment, found->second.version,
        std::span(stored.parameters)
            .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()))));
  }
  return stored;
}

}  // namespace

absl::StatusOr<StoredModel> ReadStoredModel(FileSystem& file_system, const std::string& path) {
  if (file_system.IsFolder(path)) {
    if (IsModelFolder(file_system, path)) {
      ASSIGN_OR_RETURN(ModelFolder folder, ReadModelFolder(file_system, path));
      return StoredModel{.config = std::move(folder.config),
                         .parameters = std::move(folder.values)};
    }
    if (file_system.Exists(JoinPath(path, "config.json"))) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       " is a checkpoint of Hugging Face's: python3 -m causeway.huggingface import "
                       "--from=",
                       path, " --out=FOLDER makes it one of Causeway's"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a folder without ", kModelFile,
                     ": expected a checkpoint file, a parameters file or a folder of `export` (a "
                     "coordinator's folder is given as --run_dir)"));
  }
  ArrayFileKind kind = {};
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, file_system.Map(path));
    const std::span<const uint8_t> bytes = file->bytes();
    std::memcpy(kind.data(), bytes.data(), std::min(bytes.size(), kind.size()));
  }
  if (kind == kParametersKind) return ReadParameters(file_system, path);
  ASSIGN_OR_RETURN(WorkerCheckpoint checkpoint, ReadWorkerCheckpoint(file_system, path));
  return StoredModel{.config = std::move(checkpoint.config),
                     .parameters = std::move(checkpoint.sync.published),
                     .step = checkpoint.step};
}

absl::StatusOr<StoredModel> ReadPublished(FileSystem& file_system, const std::string& run_folder) {
  absl::StatusOr<StoredModel> stored = ReadPublishedOnce(file_system, run_folder);
  for (int i = 1; i < kTries && absl::IsNotFound(stored.status()); ++i) {
    stored = ReadPublishedOnce(file_system, run_folder);
  }
  return stored;
}

}  // namespace causeway::worker
