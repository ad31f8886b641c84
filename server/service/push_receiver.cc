#include "server/service/push_receiver.h"

#include "common/base/status_macros.h"

namespace causeway::server {

absl::StatusOr<PushReceiver::Next> PushReceiver::Receive(const MessageBytes& message) {
  v1::PushHeader header;
  ASSIGN_OR_RETURN(const MessageKind kind, ParseMessage(message, header, chunk_));
  switch (kind) {
    case MessageKind::kHeader:
      if (has_header_) return absl::InvalidArgumentError("a push has one header");
      header_ = std::move(header);
      return ReceiveHeader();
    case MessageKind::kChunk:
      if (!has_header_) {
        return absl::InvalidArgumentError("the first message of a push must be its header");
      }
      return ReceiveChunk(message);
    case MessageKind::kNeither:
      break;
  }
  return absl::InvalidArgumentError("a message of the push is empty or of an unknown kind");
}

absl::StatusOr<PushReceiver::Next> PushReceiver::ReceiveHeader() {
  RETURN_IF_ERROR(admit_(header_));
  ASSIGN_OR_RETURN(assembly_, table_.Attach(stream_, header_));
  has_header_ = true;
  return assembly_ == nullptr ? Next::kDone : Next::kRead;
}

absl::StatusOr<PushReceiver::Next> PushReceiver::ReceiveChunk(const MessageBytes& message) {
  if (chunk_.unpacked_bytes != 0) return Next::kUnpack;
  RETURN_IF_ERROR(Place(message));
  return Next::kRead;
}

absl::Status PushReceiver::Place(const MessageBytes& message) {
  ASSIGN_OR_RETURN(const int64_t chunk, CheckChunk(chunk_, header_.total_bytes()));
  const std::span<uint8_t> place = table_.PlaceOf(*assembly_, chunk);
  if (place.empty()) return absl::OkStatus();
  const absl::StatusOr<uint64_t> checksum = ReadChunk(message, chunk_, place);
  table_.Placed(assembly_, chunk, checksum);
  return checksum.status();
}

absl::Status PushReceiver::HalfClose() {
  if (!has_header_) return absl::InvalidArgumentError("the push ended before its header");
  table_.HalfClose(stream_);
  return absl::OkStatus();
}

}  // namespace causeway::server
