// The connection of a copy to its original, made again as often as it breaks.
#ifndef CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWER_H_
#define CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWER_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/standby.grpc.pb.h"
#include "common/rpc/channel.h"
#include "server/standby/run_copy.h"
#include "server/standby/standby_notes.h"

namespace causeway::server {

class Follower {
 public:
  // `copy` and `notes` outlive the follower. Between two tries it waits for `pause`.
  Follower(RunCopy& copy, StandbyNotes& notes, const ChannelSecurity& security, std::string address,
           absl::Duration pause)
      : copy_(copy),
        notes_(notes),
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
  RenewedChannel channel_;
  const std::string address_;
  const absl::Duration pause_;
  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_followed_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Null between calls.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STANDBY_RPC_FOLLOWER_H_
