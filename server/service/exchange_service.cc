#include "server/service/exchange_service.h"

#include "common/base/status_macros.h"
#include "common/rpc/chunk_buffer.h"
#include "common/rpc/status.h"
#include "server/service/pull_reactor.h"
#include "server/service/push_reactor.h"

namespace causeway::server {
namespace {

// A stream that ends before it begins.
template <typename Reactor>
class Refused final : public SelfOwned<Refused<Reactor>, Reactor> {
 public:
  explicit Refused(const absl::Status& status) : status_(status) {}
  void Start() { this->Finish(ToGrpcStatus(status_)); }

 private:
  const absl::Status status_;
};

absl::StatusOr<Peer> AdmitPull(Access& access, const grpc::ServerContextBase& context,
                               const grpc::ByteBuffer& request, v1::PullRequest& parsed) {
  ASSIGN_OR_RETURN(Peer peer, access.Admit(context, Action::kPull));
  // A worker cancels the streams whose connections come after the object is whole, over others:
  // their requests were never sent. That is no attempt of anybody's.
  if (request.Length() == 0) return absl::CancelledError("the pull ended before its request");
  RETURN_IF_ERROR(BufferToMessage(request, parsed));
  RETURN_IF_ERROR(access.CheckWorker(peer, Action::kPull, parsed.worker_id()));
  return peer;
}

}  // namespace

template <typename Reactor>
void ExchangeService::Watch(Peer peer, Reactor* reactor) {
  if (!peer.identity.has_value()) return;
  // gRPC calls it only after the service has returned it: it is still there.
  auto end = [weak = std::weak_ptr<Reactor>(reactor->shared_from_this())](const absl::Status& why) {
    const std::shared_ptr<Reactor> open = weak.lock();
    if (open != nullptr && !why.ok()) open->End(why);
    return open != nullptr;
  };
  absl::MutexLock lock(&mutex_);
  transfers_.push_back({.peer = std::move(peer), .end = std::move(end)});
}

void ExchangeService::EndRevokedStreams() {
  std::vector<Transfer> open;
  {
    absl::MutexLock lock(&mutex_);
    std::erase_if(transfers_, [](const Transfer& one) { return !one.end(absl::OkStatus()); });
    open = transfers_;
  }
  for (const Transfer& transfer : open) transfer.end(access_.CheckStillValid(transfer.peer));
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ExchangeService::Push(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  absl::StatusOr<Peer> peer = access_.Admit(*context, Action::kPush);
  if (!peer.ok()) {
    return Refused<grpc::ServerReadReactor<grpc::ByteBuffer>>::Make(peer.status());
  }
  PushReactor* const reactor = PushReactor::Make(
      pushes_, unpack_, peer->Name(),
      [this, sender = *peer](const v1::PushHeader& header) {
        return access_.CheckWorker(sender, Action::kPush, header.worker_id());
      },
      response);
  Watch(*std::move(peer), reactor);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ExchangeService::Pull(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  v1::PullRequest parsed;
  absl::StatusOr<Peer> peer = AdmitPull(access_, *context, *request, parsed);
  if (!peer.ok()) return Refused<grpc::ServerWriteReactor<grpc::ByteBuffer>>::Make(peer.status());
  PullReactor* const reactor = PullReactor::Make(pulls_, context, std::move(parsed));
  Watch(*std::move(peer), reactor);
  return reactor;
}

grpc::ServerUnaryReactor* ExchangeService::QueryTransfer(grpc::CallbackServerContext* context,
                                                         const v1::QueryTransferRequest* request,
                                                         v1::QueryTransferResponse* response) {
  absl::Status status = access_.Check(*context, Action::kQueryTransfer, request->worker_id());
  if (status.ok()) {
    absl::StatusOr<v1::QueryTransferResponse> answer = pushes_.Query(*request);
    status = answer.status();
    if (answer.ok()) *response = *std::move(answer);
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace causeway::server
