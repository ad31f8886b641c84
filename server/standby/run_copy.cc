#include "server/standby/run_copy.h"

#include "common/base/checksum.h"
#include "common/base/crash_point.h"
#include "common/transfer/wire.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

absl::Status Unexpected(const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the coordinator that is followed sends what none does: ", what));
}

}  // namespace

v1::FollowRequest RunCopy::Ask() {
  file_.clear();
  writer_ = nullptr;
  changes_ = {};
  has_initial_ = false;
  v1::FollowRequest request;
  request.set_wire_version(kWireVersion);
  request.set_name(name_);
  request.set_format_version(kRunFormatVersion);
  *request.mutable_position() = store_.Position();
  for (const std::string& file : held_) request.add_held_files(file);
  return request;
}

absl::StatusOr<bool> RunCopy::Take(const v1::FollowResponse& response) {
  switch (response.kind_case()) {
    case v1::FollowResponse::kHeader:
      return false;
    case v1::FollowResponse::kPart:
      RETURN_IF_ERROR(TakePart(response.part()));
      return false;
    case v1::FollowResponse::kRecords:
      for (const v1::Record& record : response.records().records()) {
        changes_.records.push_back(record);
      }
      return false;
    case v1::FollowResponse::kBegin:
      RETURN_IF_ERROR(TakeBegin(response.begin()));
      return true;
    case v1::FollowResponse::kAdvance:
      RETURN_IF_ERROR(TakeAdvance(response.advance()));
      return true;
    case v1::FollowResponse::KIND_NOT_SET:
      return Unexpected("an empty message");
  }
  return Unexpected("a message of no known kind");
}

absl::Status RunCopy::TakePart(const v1::FilePart& part) {
  const std::string& file = part.file();
  const bool is_initial = file == kInitialFile && store_.Position().commits() == 0;
  if (!is_initial && !BlobFolder::IsBlobName(file)) return Unexpected("a file of another name");
  const auto bytes = static_cast<int64_t>(part.data().size());
  if (part.offset() == 0) {
    // A run has begun here, or its file is no trace of one.
    path_ = is_initial ? Path(file) : store_.blobs().Path(file);
    ASSIGN_OR_RETURN(writer_, store_.file_system().Create(path_ + ".tmp"));
    file_ = file;
    written_ = 0;
  }
  if (file != file_ || part.offset() != written_ || bytes > part.file_bytes() - written_ ||
      (bytes == 0 && part.file_bytes() > 0)) {
    return Unexpected(absl::StrCat("a piece of ", file, " out of order"));
  }
  if (Checksum64(part.data()) != part.checksum()) {
    return absl::UnavailableError(
        absl::StrCat("a piece of ", file, " was damaged on its way: it is asked for again"));
  }
  const auto* const data = reinterpret_cast<const uint8_t*>(part.data().data());
  RETURN_IF_ERROR(writer_->Append(std::span(data, part.data().size())));
  written_ += bytes;
  if (written_ < part.file_bytes()) return absl::OkStatus();
  CrashPoint("before_blob_sync");
  RETURN_IF_ERROR(writer_->Sync());
  writer_ = nullptr;
  file_.clear();
  CrashPoint("after_blob_sync");
  RETURN_IF_ERROR(store_.file_system().Rename(path_ + ".tmp", path_));
  CrashPoint("after_blob_rename");
  RETURN_IF_ERROR(store_.file_system().SyncFolder(ParentFolder(path_)));
  if (is_initial) {
    has_initial_ = true;
  } else {
    held_.insert(file);
  }
  return absl::OkStatus();
}

absl::Status RunCopy::TakeBegin(const v1::CopyBegin& begin) {
  if (begin.identity().run_id().empty()) return Unexpected("a run without a name");
  if (!has_initial_ && store_.file_system().Exists(Path(kInitialFile))) {
    RETURN_IF_ERROR(store_.file_system().Remove(Path(kInitialFile)));
    RETURN_IF_ERROR(store_.file_system().SyncFolder(store_.folder()));
  }
  return store_.BeginRun(begin.identity());
}

absl::Status RunCopy::TakeAdvance(const v1::CopyAdvance& advance) {
  // No record names them, now or later.
  for (const std::string& file : advance.dropped_files()) {
    if (held_.erase(file) > 0) RETURN_IF_ERROR(store_.blobs().RemoveFile(file));
  }
  changes_.advance = advance;
  RETURN_IF_ERROR(store_.Advance(changes_));
  held_.clear();
  return absl::OkStatus();
}

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
