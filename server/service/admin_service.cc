#include "server/service/admin_service.h"

#include "common/rpc/status.h"
#include "server/service/session_service.h"

namespace causeway::server {
namespace {

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest*,
                                                  v1::RunStatus* response) {
  const absl::Status access = access_.Admit(*context, Action::kGetStatus).status();
  if (access.ok()) {
    *response = run_.GetStatus();
    links_.AddTo(*response);
  }
  return FinishWith(context, access);
}

grpc::ServerUnaryReactor* AdminService::ListEvents(grpc::CallbackServerContext* context,
                                                   const v1::ListEventsRequest* request,
                                                   v1::ListEventsResponse* response) {
  absl::Status status = access_.Admit(*context, Action::kGetStatus).status();
  if (status.ok() && past_events_ == nullptr) {
    status = absl::UnimplementedError("this coordinator keeps no events");
  }
  if (status.ok()) *response = past_events_(request->after());
  return FinishWith(context, status);
}

grpc::ServerUnaryReactor* AdminService::Order(grpc::CallbackServerContext& context,
                                              absl::Status checked,
                                              absl::FunctionRef<absl::Status(Orders&)> order) {
  absl::Status status = access_.Admit(context, Action::kOrder).status();
  if (status.ok()) status = std::move(checked);
  if (status.ok()) {
    const absl::StatusOr<Coordinator*> begun = run_.Begun();
    status = begun.ok() ? order((*begun)->orders()) : begun.status();
  }
  return FinishWith(&context, status);
}

grpc::ServerUnaryReactor* AdminService::Pause(grpc::CallbackServerContext* context,
                                              const v1::PauseRequest* request, v1::PauseResponse*) {
  return Order(*context, CheckLength("reason", request->reason()),
               [&](Orders& orders) { return orders.Pause(request->reason()); });
}

grpc::ServerUnaryReactor* AdminService::Resume(grpc::CallbackServerContext* context,
                                               const v1::ResumeRequest*, v1::ResumeResponse*) {
  return Order(*context, absl::OkStatus(), [](Orders& orders) { return orders.Resume(); });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request, v1::DrainResponse*) {
  return Order(*context, absl::OkStatus(),
               [&](Orders& orders) { return orders.Drain(request->worker_id()); });
}

grpc::ServerUnaryReactor* AdminService::Reject(grpc::CallbackServerContext* context,
                                               const v1::RejectRequest* request,
                                               v1::RejectResponse*) {
  return Order(*context, CheckLength("reason", request->reason()),
               [&](Orders& orders) { return orders.Reject(*request); });
}

grpc::ServerUnaryReactor* AdminService::Stop(grpc::CallbackServerContext* context,
                                             const v1::StopRequest* request, v1::StopResponse*) {
  const bool one = (request->at_step() != 0) != (request->at_tokens() != 0);
  return Order(*context,
               one ? absl::OkStatus()
                   : absl::InvalidArgumentError("give either at_step or at_tokens, not both"),
               [&](Orders& orders) {
                 return request->at_tokens() != 0 ? orders.StopAtTokens(request->at_tokens())
                                                  : orders.StopAtStep(request->at_step());
               });
}

}  // namespace causeway::server
