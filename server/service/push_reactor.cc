#include "server/service/push_reactor.h"

#include "causeway/v1/exchange.pb.h"
#include "common/rpc/chunk_buffer.h"
#include "common/rpc/status.h"

namespace causeway::server {

void PushReactor::Start() {
  const absl::Status status = table_.Open(shared_from_this(), sender_);
  if (!status.ok()) return End(status);
  Read();
}

void PushReactor::Read() {
  // Before anything waits: a message is a mebibyte.
  buffer_.Clear();
  absl::MutexLock lock(&mutex_);
  if (!ended_) StartRead(&buffer_);
}

void PushReactor::OnReadDone(bool ok) {
  if (!ok) {
    const absl::Status status = receiver_.HalfClose();
    if (!status.ok()) End(status);
    return;
  }
  const absl::StatusOr<PushReceiver::Next> next = receiver_.Receive(BufferMessage(buffer_));
  if (!next.ok()) return End(next.status());
  switch (*next) {
    case PushReceiver::Next::kRead:
      return Read();
    case PushReceiver::Next::kUnpack:
      return run_long_([self = shared_from_this()] {
        const absl::Status status = self->receiver_.Unpack(BufferMessage(self->buffer_));
        if (!status.ok()) return self->End(status);
        self->Read();
      });
    case PushReceiver::Next::kDone:
      return End(PushAccepted{.duplicate = true, .quarantined = receiver_.quarantined()});
  }
}

void PushReactor::End(const absl::StatusOr<PushAccepted>& result) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    if (result.ok()) {
      v1::PushResponse response;
      response.set_durable_bytes(receiver_.header().total_bytes());
      response.set_duplicate(result->duplicate);
      response.set_quarantined(result->quarantined);
      *response_ = MessageToBuffer(response);
    }
    Finish(ToGrpcStatus(result.status()));
  }
  // May release the last reference but the caller's.
  table_.Close(this);
}

}  // namespace causeway::server
