#include "server/service/enrollment_service.h"

#include "common/rpc/status.h"

namespace causeway::server {
namespace {

// Requests are PEM texts of one key.
constexpr size_t kMaxRequestBytes = 8192;

// Moves what `from` has to `to`.
template <typename Response>
absl::Status Give(absl::StatusOr<Response> from, Response* to) {
  RETURN_IF_ERROR(from.status());
  *to = *std::move(from);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* EnrollmentService::Answer(
    grpc::CallbackServerContext* context, Action action,
    const std::function<absl::Status(const Peer& peer)>& answer) {
  const absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const Peer peer, access_.Admit(*context, action));
    if (authority_ == nullptr) {
      return absl::FailedPreconditionError(
          "this coordinator has its certificates from elsewhere, or none, and invites nobody: its "
          "own authority comes with `serve --tls=own`, without --tls_ca, --tls_cert and --tls_key");
    }
    return answer(peer);
  }();
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* EnrollmentService::Invite(grpc::CallbackServerContext* context,
                                                    const v1::InviteRequest* request,
                                                    v1::InviteResponse* response) {
  return Answer(context, Action::kInvite, [&](const Peer& peer) -> absl::Status {
    RETURN_IF_ERROR(Give(authority_->Invite(*request, peer.Name()), response));
    for (const std::string& address : hooks_.addresses()) response->add_addresses(address);
    hooks_.trust();
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* EnrollmentService::ListInvitations(
    grpc::CallbackServerContext* context, const v1::ListInvitationsRequest*,
    v1::ListInvitationsResponse* response) {
  return Answer(context, Action::kInvite, [&](const Peer&) {
    *response = authority_->List();
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* EnrollmentService::RevokeInvitation(
    grpc::CallbackServerContext* context, const v1::RevokeInvitationRequest* request,
    v1::RevokeInvitationResponse*) {
  return Answer(context, Action::kInvite, [&](const Peer& peer) -> absl::Status {
    RETURN_IF_ERROR(authority_->Revoke(request->name(), peer.Name()));
    hooks_.trust();
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* EnrollmentService::Enroll(grpc::CallbackServerContext* context,
                                                    const v1::EnrollRequest* request,
                                                    v1::EnrollResponse* response) {
  return Answer(context, Action::kEnroll, [&](const Peer& peer) -> absl::Status {
    if (request->certificate_request().size() > kMaxRequestBytes) {
      return absl::InvalidArgumentError("the request for a certificate is too long");
    }
    return Give(authority_->Enroll(peer.fingerprint, *request, peer.address), response);
  });
}

grpc::ServerUnaryReactor* EnrollmentService::Renew(grpc::CallbackServerContext* context,
                                                   const v1::EnrollRequest* request,
                                                   v1::EnrollResponse* response) {
  return Answer(context, Action::kRenew, [&](const Peer& peer) -> absl::Status {
    if (!peer.identity.has_value() || peer.fingerprint.empty()) {
      return absl::FailedPreconditionError("only who has shown a certificate renews it");
    }
    if (request->certificate_request().size() > kMaxRequestBytes) {
      return absl::InvalidArgumentError("the request for a certificate is too long");
    }
    return Give(authority_->Renew(*peer.identity, peer.expires, *request), response);
  });
}

}  // namespace causeway::server
