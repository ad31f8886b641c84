#include "server/service/exchange_service.h"

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

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* ExchangeService::Push(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  absl::StatusOr<Peer> peer = access_.Admit(*context, Action::kPush);
  if (!peer.ok()) {
    return Refused<grpc::ServerReadReactor<grpc::ByteBuffer>>::Make(peer.status());
  }
  std::string name = peer->Name();
  return PushReactor::Make(
      pushes_, unpack_, std::move(name),
      [this, sender = *std::move(peer)](const v1::PushHeader& header) {
        return access_.CheckWorker(sender, Action::kPush, header.worker_id());
      },
      response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ExchangeService::Pull(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  v1::PullRequest parsed;
  // A worker that has its object whole cancels its other streams, of which one may not have come
  // further than this. Nobody has asked for anything.
  absl::Status status = request->Length() == 0
                            ? absl::InvalidArgumentError("the pull ended before its request")
                            : BufferToMessage(*request, parsed);
  if (status.ok()) status = access_.Check(*context, Action::kPull, parsed.worker_id());
  if (!status.ok()) return Refused<grpc::ServerWriteReactor<grpc::ByteBuffer>>::Make(status);
  return PullReactor::Make(pulls_, context, std::move(parsed));
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
