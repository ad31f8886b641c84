#include "server/standby/run_feed.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/checksum.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

constexpr size_t kPartBytes = kTreeLeafBytes;
constexpr size_t kRecordBytes = size_t{512} << 10;  // Per message, unless one record has more.

absl::Status Send(RunDirectoryStore& store, v1::FollowResponse& response, FeedWriter write) {
  response.set_commits(store.Position().commits());
  if (write(response)) return absl::OkStatus();
  return absl::CancelledError("the follower is gone");
}

// `file` is its name, `path` where it is. NOT_FOUND if it is not there.
absl::Status SendFile(RunDirectoryStore& store, const std::string& file, const std::string& path,
                      FeedWriter write) {
  ASSIGN_OR_RETURN(const std::string content, store.file_system().ReadFile(path));
  // Removed meanwhile, and perhaps written over before it was read.
  if (!store.file_system().Exists(path)) return absl::NotFoundError(path);
  size_t offset = 0;
  do {
    const absl::string_view data = absl::string_view(content).substr(offset, kPartBytes);
    v1::FollowResponse response;
    v1::FilePart& part = *response.mutable_part();
    part.set_file(file);
    part.set_file_bytes(static_cast<int64_t>(content.size()));
    part.set_offset(static_cast<int64_t>(offset));
    part.set_checksum(Checksum64(data));
    part.set_data(data.data(), data.size());
    RETURN_IF_ERROR(Send(store, response, write));
    offset += data.size();
  } while (offset < content.size());
  return absl::OkStatus();
}

absl::Status SendBegin(RunDirectoryStore& store, FeedWriter write) {
  v1::FollowResponse response;
  ASSIGN_OR_RETURN(*response.mutable_begin()->mutable_identity(), store.Identity());
  const absl::Status initial =
      SendFile(store, kInitialFile, JoinPath(store.folder(), kInitialFile), write);
  if (!absl::IsNotFound(initial)) RETURN_IF_ERROR(initial);
  return Send(store, response, write);
}

absl::Status SendRecords(RunDirectoryStore& store, RunChanges& changes, FeedWriter write) {
  v1::FollowResponse response;
  size_t bytes = 0;
  for (v1::Record& record : changes.records) {
    const size_t size = record.ByteSizeLong();
    if (bytes > 0 && bytes + size > kRecordBytes) {
      RETURN_IF_ERROR(Send(store, response, write));
      response.Clear();
      bytes = 0;
    }
    bytes += size;
    *response.mutable_records()->add_records() = std::move(record);
  }
  return bytes > 0 ? Send(store, response, write) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> SendWhatLacks(RunDirectoryStore& store, const v1::FollowRequest& request,
                                   FeedWriter write) {
  const v1::CopyPosition& position = request.position();
  if (position.commits() == 0) {
    RETURN_IF_ERROR(SendBegin(store, write));
    return true;
  }
  std::set<std::string> held(request.held_files().begin(), request.held_files().end());
  RunChanges changes;
  for (bool complete = false; !complete;) {
    ASSIGN_OR_RETURN(changes, store.ChangesSince(position));
    if (changes.empty()) return false;
    complete = true;
    for (const v1::Blob& blob : changes.blobs) {
      if (held.contains(blob.file())) continue;
      const absl::Status sent =
          SendFile(store, blob.file(), store.blobs().Path(blob.file()), write);
      if (absl::IsNotFound(sent) &&
          store.WaitForCommit(changes.advance.to(), absl::ZeroDuration()) > changes.advance.to()) {
        complete = false;  // A later commit has removed it: what it says is asked for anew.
        break;
      }
      RETURN_IF_ERROR(sent);
      held.insert(blob.file());
    }
  }
  for (const v1::Blob& blob : changes.blobs) held.erase(blob.file());
  RETURN_IF_ERROR(SendRecords(store, changes, write));
  v1::FollowResponse response;
  v1::CopyAdvance& advance = *response.mutable_advance();
  advance = std::move(changes.advance);
  for (const std::string& file : held) advance.add_dropped_files(file);
  RETURN_IF_ERROR(Send(store, response, write));
  return true;
}

}  // namespace causeway::server
