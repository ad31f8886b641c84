#include "server/service/exchange_service.h"

#include "common/base/status_macros.h"
#include "common/rpc/chunk_buffer.h"
#include "common/rpc/status.h"
#include "server/service/lane_reactor.h"
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

absl::Status AdmitPull(Access& access, const grpc::ServerContextBase& context,
                       const grpc::ByteBuffer& request, v1::PullRequest& parsed) {
  ASSIGN_OR_RETURN(const Peer peer, access.Admit(context, Action::kPull));
  // A worker cancels the streams whose connections come after the object is whole, over others:
  // their requests were never sent. That is no attempt of anybody's.
  if (request.Length() == 0) return absl::CancelledError("the pull ended before its request");
  RETURN_IF_ERROR(BufferToMessage(request, parsed));
  return access.CheckWorker(peer, Action::kPull, parsed.worker_id());
}

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
  const absl::Status status = AdmitPull(access_, *context, *request, parsed);
  if (!status.ok()) return Refused<grpc::ServerWriteReactor<grpc::ByteBuffer>>::Make(status);
  return PullReactor::Make(pulls_, context, std::move(parsed));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ExchangeService::Carry(
    grpc::CallbackServerContext* context) {
  return LaneReactor::Make(access_, lanes_, context, access_.Admit(*context, Action::kPull));
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
