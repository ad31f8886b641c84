#include "server/service/exchange_service.h"

#include "common/rpc/status.h"
#include "server/service/pull_reactor.h"
#include "server/service/push_reactor.h"

namespace causeway::server {

grpc::ServerReadReactor<v1::PushRequest>* ExchangeService::Push(grpc::CallbackServerContext*,
                                                                v1::PushResponse* response) {
  return PushReactor::Make(coordinator_, work_, push_memory_, response);
}

grpc::ServerWriteReactor<v1::PullResponse>* ExchangeService::Pull(grpc::CallbackServerContext*,
                                                                  const v1::PullRequest* request) {
  return PullReactor::Make(coordinator_, work_, *request);
}

grpc::ServerUnaryReactor* ExchangeService::QueryTransfer(grpc::CallbackServerContext* context,
                                                         const v1::QueryTransferRequest* request,
                                                         v1::QueryTransferResponse* response) {
  absl::StatusOr<v1::QueryTransferResponse> answer = coordinator_.QueryTransfer(*request);
  if (answer.ok()) *response = *std::move(answer);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(answer.status()));
  return reactor;
}

}  // namespace causeway::server
