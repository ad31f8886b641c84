#include "server/service/pull_reactor.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/chunk.h"
#include "common/rpc/status.h"
#include "common/rpc/wire.h"

namespace causeway::server {

void PullReactor::Start() {
  const absl::Status status = CheckRequest();
  if (!status.ok()) return Begin(status);
  if (request_.object() == v1::PullRequest::STATE) {
    work_.Run([self = shared_from_this()] {
      self->Begin(self->coordinator_.PullState(self->request_.fragment()));
    });
    return;
  }
  coordinator_.PullAnswer(
      request_.fragment(), request_.round(),
      [self = shared_from_this()](const absl::StatusOr<std::shared_ptr<const PullObject>>& object) {
        self->Begin(object);
      });
}

absl::Status PullReactor::CheckRequest() const {
  const std::string& run_id = coordinator_.run_id();
  if (request_.run_id() != run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("this is the run ", run_id, ", the pull is for ", request_.run_id()));
  }
  if (request_.object() != v1::PullRequest::ANSWER && request_.object() != v1::PullRequest::STATE) {
    return absl::InvalidArgumentError("object must be ANSWER or STATE");
  }
  if (request_.start_offset() < 0) {
    return absl::OutOfRangeError(
        absl::StrCat("start_offset must not be negative, it is ", request_.start_offset()));
  }
  return absl::OkStatus();
}

absl::Status PullReactor::CheckObject(const PullObject& object) const {
  if (request_.object() == v1::PullRequest::STATE && request_.round() != 0 &&
      request_.round() != object.header.round()) {
    return absl::NotFoundError(absl::StrCat("version ", request_.round(), " of fragment ",
                                            request_.fragment(), " is no longer kept, version ",
                                            object.header.round(), " is: pull it from the start"));
  }
  if (request_.start_offset() > object.header.total_bytes()) {
    return absl::OutOfRangeError(absl::StrCat("the object has ", object.header.total_bytes(),
                                              " bytes, start_offset is ", request_.start_offset()));
  }
  return absl::OkStatus();
}

void PullReactor::Begin(const absl::StatusOr<std::shared_ptr<const PullObject>>& object) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;  // The worker went away while it waited.
  absl::Status status = object.status();
  if (status.ok()) status = CheckObject(**object);
  if (!status.ok()) return End(status);
  object_ = *object;
  offset_ = request_.start_offset();
  v1::PullHeader& header = *response_.mutable_header();
  header = object_->header;
  header.set_start_offset(offset_);
  StartWrite(&response_);
}

void PullReactor::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  if (!ok) return End(absl::CancelledError("the stream broke"));
  WriteNextChunk();
}

void PullReactor::WriteNextChunk() {
  const auto total = static_cast<int64_t>(object_->bytes.size());
  if (offset_ == total) return End(absl::OkStatus());
  // A resumed pull comes back to whole chunks, whose ends are the tree hash's leaves.
  const auto chunk_bytes = static_cast<int64_t>(kChunkBytes);
  const int64_t end = std::min(total, (offset_ / chunk_bytes + 1) * chunk_bytes);
  const auto bytes = std::span(object_->bytes)
                         .subspan(static_cast<size_t>(offset_), static_cast<size_t>(end - offset_));
  v1::Chunk& chunk = *response_.mutable_chunk();
  FillChunk(offset_, bytes, coordinator_.config().sync().entropy_down(), chunk);
  offset_ = end;
  coordinator_.RecordPulled(request_.worker_id(), request_.object(),
                            static_cast<int64_t>(chunk.data().size()));
  if (end == total) {
    ended_ = true;
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  } else {
    StartWrite(&response_);
  }
}

void PullReactor::End(const absl::Status& status) {
  ended_ = true;
  Finish(ToGrpcStatus(status));
}

void PullReactor::OnCancel() {
  absl::MutexLock lock(&mutex_);
  // Once writes are under way, the next OnWriteDone ends the call.
  if (!ended_ && object_ == nullptr) End(absl::CancelledError("the worker went away"));
}

}  // namespace causeway::server
