// The side of a follower: makes a run directory of what an original sends
// (proto/causeway/v1/standby.proto).
//
// It makes a run directory at one commit of the original, nothing else:
// `causeway-coordinator serve` opens it as it opens the original after a death.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/standby.pb.h"
#include "common/base/file_system.h"
#include "server/store/run_directory_store.h"

namespace causeway::server {

// Not thread-safe.
class RunCopy {
 public:
  // After Recover and BeginCopy of the store, which outlives the copy.
  RunCopy(RunDirectoryStore& store, std::string name) : store_(store), name_(std::move(name)) {}

  // Says what to ask for: where the copy stands, and which files it has beyond that. Drops what
  // came of a file or of records that was not whole: ask when a stream begins, and after every
  // step.
  v1::FollowRequest Ask();
  // Takes the next message. True: the copy has made a step, which is durable. Errors are final but
  // for RESOURCE_EXHAUSTED (the disk is full: ask again once there is room). INVALID_ARGUMENT and
  // DATA_LOSS: what came is not what an original sends, or is of another history.
  absl::StatusOr<bool> Take(const v1::FollowResponse& response);

 private:
  absl::Status TakePart(const v1::FilePart& part);
  absl::Status TakeBegin(const v1::CopyBegin& begin);
  absl::Status TakeAdvance(const v1::CopyAdvance& advance);
  std::string Path(const std::string& file) const { return JoinPath(store_.folder(), file); }

  RunDirectoryStore& store_;
  const std::string name_;
  std::set<std::string> held_;  // Whole and durable; no record names them yet.
  bool has_initial_ = false;    // Came with this stream.
  RunChanges changes_;          // Records so far.
  std::string file_;            // Being written; empty: none.
  std::string path_;            // Where it will be.
  std::unique_ptr<WritableFile> writer_;
  int64_t written_ = 0;
};

// The side of a copy's original: what is sent to a follower (proto/causeway/v1/standby.proto).

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
