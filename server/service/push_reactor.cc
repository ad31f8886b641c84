#include "server/service/push_reactor.h"

#include "common/rpc/status.h"

namespace causeway::server {

void PushReactor::OnReadDone(bool ok) {
  if (!ok) return End(receiver_.CutShort());
  const absl::Status status = receiver_.Receive(request_);
  if (!status.ok()) return End(status);
  if (!receiver_.complete()) {
    StartRead(&request_);
    return;
  }
  if (receiver_.duplicate()) return End(absl::OkStatus());
  work_.Run([self = shared_from_this()] {
    self->End(
        self->coordinator_.Contribute(self->receiver_.header(), self->receiver_.TakeObject()));
  });
}

void PushReactor::End(const absl::Status& status) {
  if (status.ok()) {
    response_->set_durable_bytes(receiver_.header().total_bytes());
    response_->set_duplicate(receiver_.duplicate());
    response_->set_quarantined(coordinator_.IsQuarantined(receiver_.header()));
  }
  Finish(ToGrpcStatus(status));
}

}  // namespace causeway::server
