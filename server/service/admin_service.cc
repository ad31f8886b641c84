#include "server/service/admin_service.h"

#include "common/rpc/status.h"
#include "server/service/text_limits.h"

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
    *response = coordinator_.GetStatus();
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

grpc::ServerUnaryReactor* AdminService::Pause(grpc::CallbackServerContext* context,
                                              const v1::PauseRequest* request, v1::PauseResponse*) {
  absl::Status status = access_.Admit(*context, Action::kOrder).status();
  if (status.ok()) status = CheckLength("reason", request->reason());
  if (status.ok()) status = coordinator_.orders().Pause(request->reason());
  return FinishWith(context, status);
}

grpc::ServerUnaryReactor* AdminService::Resume(grpc::CallbackServerContext* context,
                                               const v1::ResumeRequest*, v1::ResumeResponse*) {
  absl::Status status = access_.Admit(*context, Action::kOrder).status();
  if (status.ok()) status = coordinator_.orders().Resume();
  return FinishWith(context, status);
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request, v1::DrainResponse*) {
  absl::Status status = access_.Admit(*context, Action::kOrder).status();
  if (status.ok()) status = coordinator_.orders().Drain(request->worker_id());
  return FinishWith(context, status);
}

grpc::ServerUnaryReactor* AdminService::Reject(grpc::CallbackServerContext* context,
                                               const v1::RejectRequest* request,
                                               v1::RejectResponse*) {
  absl::Status status = access_.Admit(*context, Action::kOrder).status();
  if (status.ok()) status = CheckLength("reason", request->reason());
  if (status.ok()) status = coordinator_.orders().Reject(*request);
  return FinishWith(context, status);
}

grpc::ServerUnaryReactor* AdminService::Stop(grpc::CallbackServerContext* context,
                                             const v1::StopRequest* request, v1::StopResponse*) {
  const absl::Status access = access_.Admit(*context, Action::kOrder).status();
  if (!access.ok()) return FinishWith(context, access);
  if ((request->at_step() != 0) == (request->at_tokens() != 0)) {
    return FinishWith(context,
                      absl::InvalidArgumentError("give either at_step or at_tokens, not both"));
  }
  if (request->at_tokens() != 0) {
    return FinishWith(context, coordinator_.orders().StopAtTokens(request->at_tokens()));
  }
  return FinishWith(context, coordinator_.orders().StopAtStep(request->at_step()));
}

}  // namespace causeway::server
