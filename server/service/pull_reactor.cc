#include "server/service/pull_reactor.h"

#include <grpcpp/server_context.h>

#include "common/rpc/chunk_buffer.h"
#include "common/rpc/status.h"

namespace causeway::server {

void PullReactor::SendHeader(const v1::PullHeader& header) {
  v1::PullResponse response;
  *response.mutable_header() = header;
  Write(MessageToBuffer(response));
}

void PullReactor::SendChunk(const OutgoingChunk& chunk) {
  Write(ChunkToBuffer(chunk.fields, chunk.data, chunk.owner));
}

void PullReactor::Write(grpc::ByteBuffer buffer) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  writing_ = true;
  buffer_.Swap(&buffer);
  StartWrite(&buffer_);
}

void PullReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    buffer_.Clear();
    FinishIfIdle();
    if (ended_) return;
  }
  if (!ok) return End(absl::UnavailableError("the stream broke"));
  table_.Sent(this);
}

void PullReactor::FinishIfIdle() {
  if (!ended_ || writing_ || cancelling_ || finished_) return;
  finished_ = true;
  Finish(ToGrpcStatus(status_));
}

void PullReactor::End(const absl::Status& status) {
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = status;
    // A status waits behind the message that the worker does not take: nothing but a reset helps.
    cancel = writing_;
    cancelling_ = cancel;
    FinishIfIdle();
  }
  if (cancel) {
    context_->TryCancel();
    absl::MutexLock lock(&mutex_);
    cancelling_ = false;
    FinishIfIdle();
  }
  // May release the last reference but the caller's.
  table_.Close(this);
}

}  // namespace causeway::server
