#include "worker/link/pull_receiver.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway::worker {

void PullReceiver::BeginGroup(uint64_t stripe_group) {
  absl::MutexLock lock(&mutex_);
  stripe_group_ = stripe_group;
  // A state may move on to another version meanwhile: then there is no use in the rest of this.
  round_ = begun_ ? header_.round() : request_.round();
  moved_on_ = false;
}

v1::PullRequest PullReceiver::Request() const {
  v1::PullRequest request = request_;
  absl::MutexLock lock(&mutex_);
  request.set_stripe_group(stripe_group_);
  request.set_round(round_);
  if (begun_) request.set_held_chunks(held_.ToWire());
  return request;
}

absl::StatusOr<PullReceiver::Received> PullReceiver::Receive(const MessageBytes& message,
                                                             bool& has_header) {
  v1::PullHeader header;
  ChunkFields fields;
  const absl::StatusOr<MessageKind> kind = ParseMessage(message, header, fields);
  if (!kind.ok()) return absl::DataLossError(kind.status().message());
  switch (*kind) {
    case MessageKind::kHeader:
      RETURN_IF_ERROR(ReceiveHeader(header));
      has_header = true;
      return Received{.header = true};
    case MessageKind::kChunk:
      if (!has_header) {
        return absl::DataLossError("the first message of a pull must be its header");
      }
      return ReceiveChunk(message, fields);
    case MessageKind::kNeither:
      break;
  }
  return absl::DataLossError("a message of the pull is empty or of an unknown kind");
}

absl::Status PullReceiver::ReceiveHeader(const v1::PullHeader& header) {
  if (header.total_bytes() != expected_bytes_) {
    return absl::DataLossError(absl::StrCat("fragment ", request_.fragment(), " has ",
                                            header.total_bytes(), " bytes; expected ",
                                            expected_bytes_));
  }
  absl::MutexLock lock(&mutex_);
  if (begun_) {
    if (header.object_hash() == header_.object_hash() && header.round() == header_.round()) {
      return absl::OkStatus();
    }
    moved_on_ = true;
    return absl::UnavailableError("the object changed while it was pulled");
  }
  begun_ = true;
  header_ = header;
  held_ = ChunkSet(expected_bytes_);
  claimed_ = held_;
  object_.resize(static_cast<size_t>(expected_bytes_));
  leaves_.resize(static_cast<size_t>(held_.chunks()));
  return absl::OkStatus();
}

absl::StatusOr<PullReceiver::Received> PullReceiver::ReceiveChunk(const MessageBytes& message,
                                                                  const ChunkFields& fields) {
  Received received = {.data_bytes = static_cast<int64_t>(fields.data_bytes)};
  const absl::StatusOr<int64_t> chunk = CheckChunk(fields, expected_bytes_);
  if (!chunk.ok()) return absl::DataLossError(chunk.status().message());
  std::span<uint8_t> leaf;
  {
    absl::MutexLock lock(&mutex_);
    // Sent twice, which does no harm.
    if (!claimed_.Add(*chunk)) {
      received.again = true;
      return received;
    }
    leaf = std::span(object_).subspan(static_cast<size_t>(fields.offset),
                                      static_cast<size_t>(held_.Size(*chunk)));
  }
  const absl::StatusOr<uint64_t> checksum = ReadChunk(message, fields, leaf);
  absl::MutexLock lock(&mutex_);
  if (!checksum.ok()) {
    claimed_.Remove(*chunk);
    return absl::DataLossError(checksum.status().message());
  }
  held_.Add(*chunk);
  leaves_[static_cast<size_t>(*chunk)] = *checksum;
  return received;
}

absl::Status PullReceiver::EndGroup(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (begun_ && held_.complete()) {
    if (TreeRoot(leaves_) == header_.object_hash()) return absl::OkStatus();
    StartAgain();
    return absl::DataLossError("the object does not hash to what its header announced");
  }
  const bool gone = begun_ && request_.object() == v1::PullRequest::STATE &&
                    (absl::IsFailedPrecondition(status) || absl::IsNotFound(status));
  if (gone || moved_on_) {
    StartAgain();
    return absl::UnavailableError("the object moved on while it was pulled");
  }
  RETURN_IF_ERROR(status);
  return absl::UnavailableError(absl::StrCat("the streams ended after ", held_.held_bytes(), " of ",
                                             expected_bytes_, " bytes"));
}

void PullReceiver::StartAgain() {
  begun_ = false;
  held_ = {};
  claimed_ = {};
}

int64_t PullReceiver::received_bytes() const {
  absl::MutexLock lock(&mutex_);
  return held_.held_bytes();
}

PulledObject PullReceiver::TakeObject() {
  absl::MutexLock lock(&mutex_);
  return {.round = header_.round(),
          .codec = header_.codec(),
          .published_hash = header_.published_hash(),
          .bytes = std::move(object_)};
}

}  // namespace causeway::worker
