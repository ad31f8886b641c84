#include "server/store/run_directory_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "server/store/checkpoint_file.h"

namespace causeway::server {
namespace {

constexpr char kRunFile[] = "run.json";
constexpr int kFormatVersion = 1;

std::string RunIdOf(FileSystem& file_system, const std::string& path) {
  const absl::StatusOr<std::string> text = file_system.ReadFile(path);
  if (!text.ok()) return "unreadable";
  const nlohmann::json run = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!run.is_object() || !run.contains("run_id") || !run["run_id"].is_string()) {
    return "unreadable";
  }
  return run["run_id"].get<std::string>();
}

}  // namespace

nlohmann::json RoundToJson(const RoundRecord& record) {
  return {{"unix_s", record.published_unix_s},
          {"fragment", record.fragment},
          {"round", record.round},
          {"contributors", record.contributors},
          {"weights", record.weights},
          {"send_step", record.send_step},
          {"first_unix_s", record.first_unix_s},
          {"closed_unix_s", record.closed_unix_s},
          {"published_unix_s", record.published_unix_s},
          {"bytes_in", record.bytes_in},
          {"bytes_out", record.bytes_out},
          {"published_hash", HashToHex(record.published_hash)},
          {"reason", record.reason}};
}

absl::StatusOr<std::unique_ptr<RunDirectoryStore>> RunDirectoryStore::Open(
    FileSystem& file_system, const std::string& folder) {
  RETURN_IF_ERROR(file_system.CreateFolders(folder));
  ASSIGN_OR_RETURN(std::unique_ptr<FolderLock> lock, file_system.Lock(folder));
  const std::string run_file = JoinPath(folder, kRunFile);
  if (file_system.Exists(run_file)) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " already holds the run ", RunIdOf(file_system, run_file),
                     ", which cannot be continued; choose another --run_dir or remove it"));
  }
  return std::unique_ptr<RunDirectoryStore>(
      new RunDirectoryStore(file_system, folder, std::move(lock)));
}

absl::Status RunDirectoryStore::BeginRun(const RunIdentity& identity) {
  const nlohmann::json run = {{"format_version", kFormatVersion},
                              {"run_id", identity.run_id},
                              {"config_hash", HashToHex(identity.config_hash)},
                              {"plan_hash", HashToHex(identity.plan_hash)}};
  RETURN_IF_ERROR(WriteFileAtomically(file_system_, JoinPath(folder_, "config.textproto"),
                                      absl::string_view(FormatRunConfig(identity.config))));
  RETURN_IF_ERROR(WriteFileAtomically(file_system_, JoinPath(folder_, kRunFile),
                                      absl::string_view(run.dump(2) + "\n")));
  absl::MutexLock lock(&mutex_);
  identity_ = identity;
  ASSIGN_OR_RETURN(rounds_, JsonLinesFile::Create(file_system_, JoinPath(folder_, "rounds.jsonl")));
  return absl::OkStatus();
}

absl::Status RunDirectoryStore::AbandonRun() {
  RETURN_IF_ERROR(file_system_.Remove(JoinPath(folder_, kRunFile)));
  return file_system_.SyncFolder(folder_);
}

absl::Status RunDirectoryStore::SaveContribution(const ContributionRecord&,
                                                 std::span<const uint8_t>) {
  return absl::OkStatus();
}

absl::StatusOr<JsonLinesFile*> RunDirectoryStore::RoundsFile() {
  absl::MutexLock lock(&mutex_);
  if (rounds_ == nullptr) return absl::FailedPreconditionError("the run has not begun");
  return rounds_.get();
}

absl::Status RunDirectoryStore::SaveRound(const RoundRecord& record, std::span<const uint8_t>) {
  ASSIGN_OR_RETURN(JsonLinesFile* const rounds, RoundsFile());
  return rounds->Append(RoundToJson(record));
}

absl::Status RunDirectoryStore::SaveSnapshot(std::span<const FragmentView> fragments) {
  RunIdentity identity;
  {
    absl::MutexLock lock(&mutex_);
    identity = identity_;
  }
  return WriteCheckpoint(file_system_, JoinPath(folder_, "checkpoint.bin"), identity, fragments);
}

absl::Status RunDirectoryStore::SaveSummary(const nlohmann::json& summary) {
  return WriteFileAtomically(file_system_, JoinPath(folder_, "summary.json"),
                             absl::string_view(summary.dump(2) + "\n"));
}

}  // namespace causeway::server
