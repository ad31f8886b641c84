// A run directory: the folder that one coordinator process owns while it runs.
//
//   LOCK              held by the owner; contains its process id
//   run.json          {"format_version": 1, "run_id", "config_hash", "plan_hash"}
//   config.textproto  the complete configuration
//   rounds.jsonl      one line per published round, see RoundToJson
//   checkpoint.bin    the fragments' state at the end, see checkpoint_file.h
//   summary.json      what the run did, written at the end
//
// Contributions are not kept: a coordinator that is killed loses its run.
#ifndef CAUSEWAY_SERVER_STORE_RUN_DIRECTORY_STORE_H_
#define CAUSEWAY_SERVER_STORE_RUN_DIRECTORY_STORE_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_system.h"
#include "common/telemetry/event_log.h"
#include "server/store/store.h"

namespace causeway::server {

// {"unix_s" (published), "fragment", "round", "contributors", "weights", "send_step",
//  "first_unix_s", "closed_unix_s", "published_unix_s", "bytes_in", "bytes_out",
//  "published_hash" (16 hexadecimal digits), "reason"}
nlohmann::json RoundToJson(const RoundRecord& record);

// Thread-safe.
class RunDirectoryStore final : public Store {
 public:
  // Creates the folder and takes its lock. FAILED_PRECONDITION if another process owns it, or if
  // it holds a run already. `file_system` outlives the store.
  static absl::StatusOr<std::unique_ptr<RunDirectoryStore>> Open(FileSystem& file_system,
                                                                 const std::string& folder);

  const std::string& folder() const { return folder_; }

  // Frees the folder for another run, if this one never served anybody.
  absl::Status AbandonRun();

  absl::Status BeginRun(const RunIdentity& identity) override;
  absl::Status SaveContribution(const ContributionRecord& record,
                                std::span<const uint8_t> object) override;
  absl::Status SaveRound(const RoundRecord& record, std::span<const uint8_t> answer) override;
  absl::Status SaveSnapshot(std::span<const FragmentView> fragments) override;
  absl::Status SaveSummary(const nlohmann::json& summary) override;

 private:
  RunDirectoryStore(FileSystem& file_system, std::string folder, std::unique_ptr<FolderLock> lock)
      : file_system_(file_system), folder_(std::move(folder)), lock_(std::move(lock)) {}
  absl::StatusOr<JsonLinesFile*> RoundsFile();

  FileSystem& file_system_;
  const std::string folder_;
  const std::unique_ptr<FolderLock> lock_;
  mutable absl::Mutex mutex_;
  RunIdentity identity_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<JsonLinesFile> rounds_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_RUN_DIRECTORY_STORE_H_
