// A folder that follows a coordinator, on a thread of its own.
#ifndef CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWING_H_
#define CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWING_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/rpc/security.h"
#include "server/standby/run_copy.h"
#include "server/standby/standby_notes.h"
#include "server/standby_rpc/follower.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// The name of this machine, in the letters that a name may have.
std::string MachineName();

// Renames a folder that cannot follow to FOLDER.former-N. `why`: in words, for a line.
absl::Status PutAside(FileSystem& file_system, absl::string_view folder, absl::string_view why);

class Following {
 public:
  // Opens the folder, makes it a copy and follows `address` under `name`. Errors of the folder.
  // `notes` outlive the result.
  static absl::StatusOr<std::unique_ptr<Following>> Start(
      FileSystem& file_system, const std::string& folder, const RunDirectoryStore::Options& options,
      const std::string& name, const std::string& address, const ChannelSecurity& security,
      StandbyNotes& notes);
  ~Following() { Stop().IgnoreError(); }
  Following(const Following&) = delete;
  Following& operator=(const Following&) = delete;

  // Whether it has ended by itself: Stop says why.
  bool ended() const { return ended_; }
  // Ends it; the folder is free once the object is gone. Result of Follower::Run.
  absl::Status Stop();
  bool has_followed() const { return follower_.has_followed(); }
  int64_t commits() { return store_->Position().commits(); }

 private:
  Following(std::unique_ptr<RunDirectoryStore> store, const std::string& name,
            const std::string& address, const ChannelSecurity& security, StandbyNotes& notes);

  const std::unique_ptr<RunDirectoryStore> store_;
  RunCopy copy_;
  Follower follower_;
  absl::Status result_;  // Result of the thread, once it has ended.
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWING_H_
