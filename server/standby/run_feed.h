// The side of a copy's original: what is sent to a follower (proto/causeway/v1/standby.proto).
#ifndef CAUSEWAY_SERVER_STANDBY_RUN_FEED_H_
#define CAUSEWAY_SERVER_STANDBY_RUN_FEED_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/standby.pb.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// Hands one message on. False: the follower is gone.
using FeedWriter = absl::FunctionRef<bool(const v1::FollowResponse&)>;

// Sends what a copy that stands where `request` says lacks: the beginning of the run, or everything
// up to one commit. False: it lacks nothing. CANCELLED once the writer says that nobody reads;
// errors of RunDirectoryStore::ChangesSince, and of reading files.
//
// Files are read into memory one by one: a disk that fails ends a call, not the process.
absl::StatusOr<bool> SendWhatLacks(RunDirectoryStore& store, const v1::FollowRequest& request,
                                   FeedWriter write);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STANDBY_RUN_FEED_H_
