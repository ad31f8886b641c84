#include "worker/model/worker_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files/array_file.h"
#include "common/files/json.h"
#include "common/files/model_folder.h"
#include "common/params/run_config.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr ArrayFileKind kKind = {'C', 'W', 'A', 'Y', 'W', 'O', 'R', 'K'};
constexpr ArrayFileKind kSiteKind = {'C', 'W', 'A', 'Y', 'S', 'I', 'T', 'E'};
constexpr uint32_t kVersion = 1;
constexpr char kSiteState[] = "the site's saved state";

std::string ObjectName(size_t fragment) { return absl::StrCat("in_flight.", fragment); }

std::string HeldName(size_t fragment) { return absl::StrCat("held.", fragment); }

// The array of that name as values; empty if it is absent.
template <typename T>
absl::Status ReadArray(const ArrayFile& file, const std::string& name, std::vector<T>& values) {
  const NamedBytes* const array = file.Find(name);
  if (array == nullptr) return absl::OkStatus();
  values.resize(array->bytes.size() / sizeof(T));
  return file.CopyTo(name, std::span(values));
}

// As ReadInteger; true, with `out` as it was, if older versions did not write the field.
template <typename T>
bool ReadOptional(const json& metadata, const char* field, T& out) {
  return !metadata.contains(field) || ReadInteger(metadata.at(field), out);
}

// None if older versions did not write them.
absl::StatusOr<Draws> ReadDraws(const json& entry, const char* field, const std::string& path) {
  if (!entry.contains(field)) return Draws();
  absl::StatusOr<Draws> draws = ParseDraws(entry.at(field).get<std::string>());
  if (draws.ok()) return draws;
  return absl::DataLossError(absl::StrCat(path, " is damaged: ", draws.status().message()));
}

absl::Status ReadMetadata(const json& metadata, const std::string& path,
                          WorkerCheckpoint& checkpoint) {
  try {
    checkpoint.run_id = metadata.at("run_id").get<std::string>();
    checkpoint.worker_id = metadata.at("worker_id").get<std::string>();
    bool whole = ReadInteger(metadata.at("data_slot"), checkpoint.data_slot) &&
                 ReadInteger(metadata.at("step"), checkpoint.step) &&
                 ReadInteger(metadata.at("tokens"), checkpoint.tokens) &&
                 ReadOptional(metadata, "pace_milli", checkpoint.pace_milli) &&
                 ReadOptional(metadata, "pace_carry_milli", checkpoint.pace_carry_milli) &&
                 ReadInteger(metadata.at("optimizer_updates"), checkpoint.optimizer_updates);
    checkpoint.sync.next_draw = -1;
    whole = whole && ReadOptional(metadata, "next_draw", checkpoint.sync.next_draw);
    for (const json& entry : metadata.at("fragments")) {
      SyncEngine::State::Fragment fragment;
      whole = whole && ReadInteger(entry.at("version"), fragment.version) &&
              ReadInteger(entry.at("tokens"), fragment.tokens) &&
              ReadInteger(entry.at("round_in_flight"), fragment.round_in_flight) &&
              ReadInteger(entry.at("tokens_in_flight"), fragment.tokens_in_flight);
      ASSIGN_OR_RETURN(fragment.draws, ReadDraws(entry, "draws", path));
      ASSIGN_OR_RETURN(fragment.draws_in_flight, ReadDraws(entry, "draws_in_flight", path));
      checkpoint.sync.fragments.push_back(std::move(fragment));
    }
    if (!whole) {
      return absl::DataLossError(
          absl::StrCat(path, " is damaged: a counter in its header is no integer"));
    }
    ASSIGN_OR_RETURN(checkpoint.config,
                     ParseRunConfig(metadata.at("config").get<std::string>(), path));
  } catch (const json::exception&) {
    return absl::DataLossError(absl::StrCat(
        path, " is damaged: its header is not that of a checkpoint; take another copy"));
  }
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(checkpoint.config).status(), path));
  if (checkpoint.sync.next_draw < 0) {
    checkpoint.sync.next_draw = checkpoint.step * checkpoint.config.train().batch_sequences();
  }
  return absl::OkStatus();
}

// Counters and lengths against the configuration that the checkpoint names.
absl::Status CheckContent(const WorkerCheckpoint& checkpoint, const std::string& path,
                          bool of_site) {
  const auto damaged = [&](auto... what) {
    return absl::DataLossError(absl::StrCat(path, " contradicts itself: ", what...));
  };
  const v1::RunConfig& config = checkpoint.config;
  if (checkpoint.step < 0 || checkpoint.step > config.train().steps() || checkpoint.tokens < 0 ||
      checkpoint.optimizer_updates < 0) {
    return damaged("step ", checkpoint.step, " of ", config.train().steps(), ", ",
                   checkpoint.tokens, " tokens, ", checkpoint.optimizer_updates, " updates");
  }
  if (checkpoint.pace_milli < 1000 || checkpoint.pace_carry_milli < 0 ||
      checkpoint.pace_carry_milli >= 1000 ||
      static_cast<double>(checkpoint.pace_milli) >
          1000 * std::max(1.0, config.membership().max_pace())) {
    return damaged("a pace of ", checkpoint.pace_milli, " and ", checkpoint.pace_carry_milli,
                   " thousandths");
  }
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  const auto arena = static_cast<size_t>(plan.arena_size());
  const bool no_moments = of_site || config.sync().contribution() == v1::SyncConfig::GRADIENT;
  const size_t moments = no_moments ? 0 : arena;
  const size_t parameters = of_site && checkpoint.parameters.empty() ? 0 : arena;
  for (const auto& [name, size, expected] :
       {std::tuple("parameters", checkpoint.parameters.size(), parameters),
        std::tuple("published", checkpoint.sync.published.size(), arena),
        std::tuple("first_moments", checkpoint.first_moments.size(), moments),
        std::tuple("second_moments", checkpoint.second_moments.size(), moments),
        std::tuple("residual", checkpoint.sync.residual.size(),
                   checkpoint.sync.residual.empty() ? 0 : arena)}) {
    if (size != expected) {
      return damaged("array ", name, " has ", size, " values, its configuration takes ", expected);
    }
  }
  return absl::OkStatus();
}

// The header, and the arrays of the checkpoint.
json Describe(const WorkerCheckpoint& checkpoint, std::vector<NamedBytes>& arrays) {
  json metadata = {{"run_id", checkpoint.run_id},
                   {"worker_id", checkpoint.worker_id},
                   {"config", FormatRunConfig(checkpoint.config)},
                   {"data_slot", checkpoint.data_slot},
                   {"step", checkpoint.step},
                   {"tokens", checkpoint.tokens},
                   {"pace_milli", checkpoint.pace_milli},
                   {"pace_carry_milli", checkpoint.pace_carry_milli},
                   {"optimizer_updates", checkpoint.optimizer_updates},
                   {"next_draw", checkpoint.sync.next_draw},
                   {"fragments", json::array()}};
  arrays = {
      NameBytes("parameters", std::span(checkpoint.parameters)),
      NameBytes("first_moments", std::span(checkpoint.first_moments)),
      NameBytes("second_moments", std::span(checkpoint.second_moments)),
      NameBytes("published", std::span(checkpoint.sync.published)),
      NameBytes("residual", std::span(checkpoint.sync.residual)),
  };
  if (!checkpoint.gaps.empty()) arrays.push_back(NameBytes("gaps", std::span(checkpoint.gaps)));
  for (size_t i = 0; i < checkpoint.sync.fragments.size(); ++i) {
    const SyncEngine::State::Fragment& fragment = checkpoint.sync.fragments[i];
    metadata["fragments"].push_back({{"version", fragment.version},
                                     {"tokens", fragment.tokens},
                                     {"round_in_flight", fragment.round_in_flight},
                                     {"tokens_in_flight", fragment.tokens_in_flight},
                                     {"draws", FormatDraws(fragment.draws)},
                                     {"draws_in_flight", FormatDraws(fragment.draws_in_flight)}});
    if (!fragment.object_in_flight.empty()) {
      arrays.push_back(NameBytes(ObjectName(i), std::span(fragment.object_in_flight)));
    }
    if (!fragment.held.empty()) {
      arrays.push_back(NameBytes(HeldName(i), std::span(fragment.held)));
    }
  }
  return metadata;
}

absl::StatusOr<WorkerCheckpoint> ReadCheckpoint(const ArrayFile& file, const std::string& path,
                                                bool of_site) {
  WorkerCheckpoint checkpoint;
  RETURN_IF_ERROR(ReadMetadata(file.metadata(), path, checkpoint));
  RETURN_IF_ERROR(ReadArray(file, "parameters", checkpoint.parameters));
  RETURN_IF_ERROR(ReadArray(file, "gaps", checkpoint.gaps));
  RETURN_IF_ERROR(ReadArray(file, "first_moments", checkpoint.first_moments));
  RETURN_IF_ERROR(ReadArray(file, "second_moments", checkpoint.second_moments));
  RETURN_IF_ERROR(ReadArray(file, "published", checkpoint.sync.published));
  RETURN_IF_ERROR(ReadArray(file, "residual", checkpoint.sync.residual));
  for (size_t i = 0; i < checkpoint.sync.fragments.size(); ++i) {
    SyncEngine::State::Fragment& fragment = checkpoint.sync.fragments[i];
    RETURN_IF_ERROR(ReadArray(file, ObjectName(i), fragment.object_in_flight));
    RETURN_IF_ERROR(ReadArray(file, HeldName(i), fragment.held));
  }
  RETURN_IF_ERROR(CheckContent(checkpoint, path, of_site));
  return checkpoint;
}

}  // namespace

absl::Status WriteWorkerCheckpoint(FileSystem& file_system, const std::string& path,
                                   const WorkerCheckpoint& checkpoint) {
  std::vector<NamedBytes> arrays;
  const json metadata = Describe(checkpoint, arrays);
  return WriteArrayFile(file_system, path, kKind, kVersion, metadata, arrays);
}

absl::StatusOr<WorkerCheckpoint> ReadWorkerCheckpoint(FileSystem& file_system,
                                                      const std::string& path) {
  ASSIGN_OR_RETURN(const ArrayFile file, ArrayFile::Read(file_system, path, kKind, kVersion));
  return ReadCheckpoint(file, path, /*of_site=*/false);
}

absl::Status PackSiteState(const WorkerCheckpoint& checkpoint,
                           const std::function<uint8_t*(size_t bytes)>& allocate) {
  std::vector<NamedBytes> arrays;
  const json metadata = Describe(checkpoint, arrays);
  const uint64_t bytes = ArrayFileBytes(metadata, arrays);
  uint8_t* const memory = allocate(bytes);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the ", bytes, " bytes of ", kSiteState));
  }
  std::span<uint8_t> rest(memory, bytes);
  const auto append = [&](std::span<const uint8_t> data) {
    if (data.size() > rest.size()) return absl::InternalError("the state is longer than planned");
    std::ranges::copy(data, rest.begin());
    rest = rest.subspan(data.size());
    return absl::OkStatus();
  };
  return AppendArrays(append, kSiteKind, kVersion, metadata, arrays);
}

absl::StatusOr<WorkerCheckpoint> UnpackSiteState(std::span<const uint8_t> bytes) {
  ASSIGN_OR_RETURN(const ArrayFile file, ArrayFile::Parse(SharedBytes(bytes, /*owner=*/nullptr),
                                                          kSiteState, kSiteKind, kVersion));
  return ReadCheckpoint(file, kSiteState, /*of_site=*/true);
}

namespace {

constexpr ArrayFileKind kSnapshotKind = {'C', 'W', 'A', 'Y', 'S', 'N', 'A', 'P'};
constexpr uint32_t kSnapshotVersion = 1;
// The owner removes old snapshots after it has written new ones.
constexpr int kTries = 10;

absl::StatusOr<StoredModel> ReadParameters(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const MappedParameters file, MappedParameters::Open(file_system, path));
  StoredModel stored;
  ASSIGN_OR_RETURN(stored.config, ParseRunConfig(file.config(), path));
  RETURN_IF_ERROR(Annotate(CompleteRunConfig(stored.config).status(), path));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(stored.config));
  if (file.size() != plan.arena_size()) {
    return absl::DataLossError(absl::StrCat(path, " contradicts itself: it has ", file.size(),
                                            " values, its configuration takes ",
                                            plan.arena_size()));
  }
  stored.parameters = file.All();
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
