#include "server/service/push_receiver.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/chunk.h"

namespace causeway::server {

absl::Status PushReceiver::Receive(const v1::PushRequest& request) {
  switch (request.message_case()) {
    case v1::PushRequest::kHeader:
      if (has_header_) return absl::InvalidArgumentError("a push has one header");
      return ReceiveHeader(request.header());
    case v1::PushRequest::kChunk:
      if (!has_header_) {
        return absl::InvalidArgumentError("the first message of a push must be its header");
      }
      return ReceiveChunk(request.chunk());
    case v1::PushRequest::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of the push is empty or of an unknown kind");
}

absl::Status PushReceiver::ReceiveHeader(const v1::PushHeader& header) {
  // Checks the size against the fragment's, so that nobody makes us allocate what he likes.
  ASSIGN_OR_RETURN(const int64_t held, coordinator_.AdmitPush(header));
  header_ = header;
  has_header_ = true;
  if (held == header.total_bytes()) {
    complete_ = true;
    duplicate_ = true;
    return absl::OkStatus();
  }
  if (!memory_.Take(header.total_bytes())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for another ", header.total_bytes(), " bytes; try again later"));
  }
  taken_bytes_ = header.total_bytes();
  object_.reserve(static_cast<size_t>(header.total_bytes()));
  return absl::OkStatus();
}

absl::Status PushReceiver::ReceiveChunk(const v1::Chunk& chunk) {
  RETURN_IF_ERROR(AppendChunk(chunk, header_.total_bytes(), object_));
  complete_ = static_cast<int64_t>(object_.size()) == header_.total_bytes();
  return absl::OkStatus();
}

absl::Status PushReceiver::CutShort() const {
  return absl::InvalidArgumentError(has_header_
                                        ? absl::StrCat("the push ended after ", object_.size(),
                                                       " of ", header_.total_bytes(), " bytes")
                                        : "the push ended before its header");
}

}  // namespace causeway::server
