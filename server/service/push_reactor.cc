#include "server/service/push_reactor.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/chunk.h"
#include "common/rpc/status.h"
#include "common/rpc/wire.h"

namespace causeway::server {

void PushReactor::OnReadDone(bool ok) {
  if (!ok) {
    End(absl::InvalidArgumentError(has_header_
                                       ? absl::StrCat("the push ended after ", object_.size(),
                                                      " of ", header_.total_bytes(), " bytes")
                                       : "the push ended before its header"));
    return;
  }
  const absl::Status status = Receive();
  if (!status.ok()) return End(status);
  if (!complete_) {
    StartRead(&request_);
    return;
  }
  if (duplicate_) return End(absl::OkStatus());
  work_.Run([self = shared_from_this()] {
    self->End(self->coordinator_.Contribute(self->header_, std::move(self->object_)));
  });
}

absl::Status PushReactor::Receive() {
  switch (request_.message_case()) {
    case v1::PushRequest::kHeader:
      if (has_header_) return absl::InvalidArgumentError("a push has one header");
      return ReceiveHeader(request_.header());
    case v1::PushRequest::kChunk:
      if (!has_header_) {
        return absl::InvalidArgumentError("the first message of a push must be its header");
      }
      return ReceiveChunk(request_.chunk());
    case v1::PushRequest::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of the push is empty or of an unknown kind");
}

absl::Status PushReactor::ReceiveHeader(const v1::PushHeader& header) {
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

absl::Status PushReactor::ReceiveChunk(const v1::Chunk& chunk) {
  RETURN_IF_ERROR(AppendChunk(chunk, header_.total_bytes(), object_));
  complete_ = static_cast<int64_t>(object_.size()) == header_.total_bytes();
  return absl::OkStatus();
}

void PushReactor::End(const absl::Status& status) {
  if (status.ok()) {
    response_->set_durable_bytes(header_.total_bytes());
    response_->set_duplicate(duplicate_);
    response_->set_quarantined(coordinator_.IsQuarantined(header_));
  }
  Finish(ToGrpcStatus(status));
}

}  // namespace causeway::server
