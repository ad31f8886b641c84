#include "worker/link/pull_receiver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/rpc/chunk.h"

namespace causeway::worker {

v1::PullRequest PullReceiver::BeginStream() {
  v1::PullRequest request = request_;
  request.set_start_offset(received_bytes());
  // A state may have moved on to another version since the stream broke: then start again.
  resumes_ = !object_.empty();
  has_header_ = false;
  if (resumes_) request.set_round(header_.round());
  return request;
}

absl::Status PullReceiver::Receive(const v1::PullResponse& response) {
  return response.has_header() ? ReceiveHeader(response.header()) : ReceiveChunk(response.chunk());
}

absl::Status PullReceiver::ReceiveHeader(const v1::PullHeader& header) {
  if (header.total_bytes() != expected_bytes_) {
    return absl::DataLossError(absl::StrCat("fragment ", request_.fragment(), " has ",
                                            header.total_bytes(), " bytes; expected ",
                                            expected_bytes_));
  }
  if (resumes_ && header.object_hash() != header_.object_hash()) {
    object_.clear();
    return absl::UnavailableError("the object changed while it was pulled");
  }
  header_ = header;
  has_header_ = true;
  object_.reserve(static_cast<size_t>(expected_bytes_));
  return absl::OkStatus();
}

absl::Status PullReceiver::ReceiveChunk(const v1::Chunk& chunk) {
  if (!has_header_) {
    return absl::DataLossError("the first message of a pull must be its header");
  }
  const absl::Status appended = AppendChunk(chunk, expected_bytes_, object_);
  return appended.ok() ? appended : absl::DataLossError(appended.message());
}

absl::Status PullReceiver::EndStream(const absl::Status& problem, const absl::Status& status) {
  RETURN_IF_ERROR(problem);
  if (resumes_ && (absl::IsFailedPrecondition(status) || absl::IsNotFound(status)) &&
      request_.object() == v1::PullRequest::STATE) {
    object_.clear();
    return absl::UnavailableError("the state moved on while it was pulled");
  }
  RETURN_IF_ERROR(status);
  if (received_bytes() != expected_bytes_) {
    return absl::UnavailableError(absl::StrCat("the stream ended after ", received_bytes(), " of ",
                                               expected_bytes_, " bytes"));
  }
  if (TreeHash(object_) != header_.object_hash()) {
    object_.clear();
    return absl::DataLossError("the object does not hash to what its header announced");
  }
  return absl::OkStatus();
}

PulledObject PullReceiver::TakeObject() {
  return {.round = header_.round(),
          .codec = header_.codec(),
          .published_hash = header_.published_hash(),
          .bytes = std::move(object_)};
}

}  // namespace causeway::worker
