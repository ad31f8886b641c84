// The connection of a copy to its original, made again as often as it breaks.
#ifndef CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWER_H_
#define CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWER_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/standby.grpc.pb.h"
#include "common/base/file_system.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"
#include "server/standby/run_copy.h"
#include "server/standby/standby_notes.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

class Follower {
 public:
  // `copy` and `notes` outlive the follower. Between two tries it waits for `pause`.
  Follower(RunCopy& copy, StandbyNotes& notes, const ChannelSecurity& security, std::string address,
           absl::Duration pause)
      : copy_(copy),
        notes_(notes),
        security_(security),
        channel_(address, 0, security),
        address_(std::move(address)),
        pause_(pause) {}

  // Follows until Stop, which makes it OK, or an error after which trying again is of no use; each
  // says what to do. One thread.
  absl::Status Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // May be called by any thread, before Run, too.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether a coordinator has ever taken this follower.
  bool has_followed() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status FollowOnce(grpc::ClientContext& context) ABSL_LOCKS_EXCLUDED(mutex_);

  RunCopy& copy_;
  StandbyNotes& notes_;
  const ChannelSecurity security_;
  RenewedChannel channel_;
  const std::string address_;
  const absl::Duration pause_;
  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_followed_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Null between calls.
};

// A folder that follows a coordinator, on a thread of its own.

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

#endif  // CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWER_H_
