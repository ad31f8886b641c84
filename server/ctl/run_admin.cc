#include "server/ctl/run_admin.h"

#include "common/rpc/status.h"

namespace causeway::server {
namespace {

// gRPC's own words say little of what to do.
absl::Status Explain(const absl::Status& status, const std::string& address,
                     absl::Duration timeout) {
  if (MadeOnTheWay(status)) {
    const std::string within =
        absl::IsDeadlineExceeded(status)
            ? absl::StrCat(" within --timeout=", absl::FormatDuration(timeout))
            : "";
    return absl::Status(
        status.code(),
        absl::StrCat("no answer from the coordinator at ", address, within, ": ", status.message(),
                     "; is it running, is --coordinator its address, and do both sides use TLS "
                     "or neither?"));
  }
  return status;
}

}  // namespace

bool IsNoAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

RunAdmin::RunAdmin(const std::string& address, const std::string& target,
                   const ChannelSecurity& security, absl::Duration timeout)
    : address_(address),
      timeout_(timeout),
      channel_(target, 0, SecurityTo(address, target, security)) {}

template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> RunAdmin::Call(grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&,
                                                                              Response*),
                                        const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  Response response;
  const auto stub = Service::NewStub(channel_.Now());
  RETURN_IF_ERROR(Explain(FromGrpcStatus((stub.get()->*method)(&context, request, &response)),
                          address_, timeout_));
  return response;
}

absl::StatusOr<v1::RunStatus> RunAdmin::GetStatus() {
  return Call<v1::Admin>(&v1::Admin::Stub::GetStatus, v1::GetStatusRequest());
}

absl::StatusOr<v1::RunConfig> RunAdmin::GetConfig() {
  ASSIGN_OR_RETURN(v1::RunStatus status, GetStatus());
  return std::move(*status.mutable_config());
}

absl::StatusOr<v1::ListEventsResponse> RunAdmin::ListEvents(int64_t after) {
  v1::ListEventsRequest request;
  request.set_after(after);
  return Call<v1::Admin>(&v1::Admin::Stub::ListEvents, request);
}

absl::Status RunAdmin::Pause(const std::string& reason) {
  v1::PauseRequest request;
  request.set_reason(reason);
  return Call<v1::Admin>(&v1::Admin::Stub::Pause, request).status();
}

absl::Status RunAdmin::Resume() {
  return Call<v1::Admin>(&v1::Admin::Stub::Resume, v1::ResumeRequest()).status();
}

absl::Status RunAdmin::Drain(const std::string& worker_id) {
  v1::DrainRequest request;
  request.set_worker_id(worker_id);
  return Call<v1::Admin>(&v1::Admin::Stub::Drain, request).status();
}

absl::Status RunAdmin::Reject(const v1::RejectRequest& order) {
  return Call<v1::Admin>(&v1::Admin::Stub::Reject, order).status();
}

absl::Status RunAdmin::Stop(int64_t at_step, int64_t at_tokens) {
  v1::StopRequest request;
  request.set_at_step(at_step);
  request.set_at_tokens(at_tokens);
  return Call<v1::Admin>(&v1::Admin::Stub::Stop, request).status();
}

absl::StatusOr<v1::InviteResponse> RunAdmin::Invite(const v1::InviteRequest& request) {
  return Call<v1::Enrollment>(&v1::Enrollment::Stub::Invite, request);
}

absl::StatusOr<v1::ListInvitationsResponse> RunAdmin::ListInvitations() {
  return Call<v1::Enrollment>(&v1::Enrollment::Stub::ListInvitations, v1::ListInvitationsRequest());
}

absl::Status RunAdmin::RevokeInvitation(const std::string& name) {
  v1::RevokeInvitationRequest request;
  request.set_name(name);
  return Call<v1::Enrollment>(&v1::Enrollment::Stub::RevokeInvitation, request).status();
}

}  // namespace causeway::server
