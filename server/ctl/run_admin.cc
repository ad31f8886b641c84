#include "server/ctl/run_admin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
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
    : address_(address), timeout_(timeout), channel_(target, 0, SecurityTo(address, security)) {}

template <typename Request, typename Response, typename Method>
absl::StatusOr<Response> RunAdmin::Call(const Request& request, Method method) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  Response response;
  const auto admin = v1::Admin::NewStub(channel_.Now());
  RETURN_IF_ERROR(
      Explain(FromGrpcStatus(method(*admin, &context, request, &response)), address_, timeout_));
  return response;
}

absl::StatusOr<v1::RunStatus> RunAdmin::GetStatus() {
  return Call<v1::GetStatusRequest, v1::RunStatus>(
      {}, [](auto& admin, auto* context, const auto& request, auto* response) {
        return admin.GetStatus(context, request, response);
      });
}

absl::StatusOr<v1::RunConfig> RunAdmin::GetConfig() {
  ASSIGN_OR_RETURN(v1::RunStatus status, GetStatus());
  return std::move(*status.mutable_config());
}

absl::StatusOr<v1::ListEventsResponse> RunAdmin::ListEvents(int64_t after) {
  v1::ListEventsRequest request;
  request.set_after(after);
  return Call<v1::ListEventsRequest, v1::ListEventsResponse>(
      request, [](auto& admin, auto* context, const auto& given, auto* response) {
        return admin.ListEvents(context, given, response);
      });
}

absl::Status RunAdmin::Pause(const std::string& reason) {
  v1::PauseRequest pause;
  pause.set_reason(reason);
  return Call<v1::PauseRequest, v1::PauseResponse>(
             pause, [](auto& admin, auto* context, const auto& request,
                       auto* response) { return admin.Pause(context, request, response); })
      .status();
}

absl::Status RunAdmin::Resume() {
  return Call<v1::ResumeRequest, v1::ResumeResponse>(
             {}, [](auto& admin, auto* context, const auto& request,
                    auto* response) { return admin.Resume(context, request, response); })
      .status();
}

absl::Status RunAdmin::Drain(const std::string& worker_id) {
  v1::DrainRequest drain;
  drain.set_worker_id(worker_id);
  return Call<v1::DrainRequest, v1::DrainResponse>(
             drain, [](auto& admin, auto* context, const auto& request,
                       auto* response) { return admin.Drain(context, request, response); })
      .status();
}

absl::Status RunAdmin::Reject(const v1::RejectRequest& order) {
  return Call<v1::RejectRequest, v1::RejectResponse>(
             order, [](auto& admin, auto* context, const auto& request,
                       auto* response) { return admin.Reject(context, request, response); })
      .status();
}

absl::Status RunAdmin::Stop(int64_t at_step, int64_t at_tokens) {
  v1::StopRequest stop;
  stop.set_at_step(at_step);
  stop.set_at_tokens(at_tokens);
  return Call<v1::StopRequest, v1::StopResponse>(
             stop, [](auto& admin, auto* context, const auto& request,
                      auto* response) { return admin.Stop(context, request, response); })
      .status();
}

}  // namespace causeway::server
