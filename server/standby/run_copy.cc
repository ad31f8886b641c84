#include "server/standby/run_copy.h"

#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/crash_point.h"
#include "common/base/status_macros.h"
#include "common/transfer/wire.h"
#include "server/store/blob_folder.h"
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

}  // namespace causeway::server
