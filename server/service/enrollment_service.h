// The service of enrollment.proto: who may ask, and what the run's own authority answers.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "causeway/v1/enrollment.grpc.pb.h"
#include "server/access/access.h"
#include "server/access/own_authority.h"

namespace causeway::server {

class EnrollmentService final : public v1::Enrollment::CallbackService {
 public:
  // Called on threads of gRPC.
  struct Hooks {
    std::function<void()> trust;                          // Who is trusted has changed.
    std::function<std::vector<std::string>()> addresses;  // HOST:PORT of this coordinator.
  };
  // `authority` may be null: the coordinator's certificates are from elsewhere. Both outlive this.
  EnrollmentService(Access& access, OwnAuthority* authority, Hooks hooks)
      : access_(access), authority_(authority), hooks_(std::move(hooks)) {}

  grpc::ServerUnaryReactor* Invite(grpc::CallbackServerContext* context,
                                   const v1::InviteRequest* request,
                                   v1::InviteResponse* response) override;
  grpc::ServerUnaryReactor* ListInvitations(grpc::CallbackServerContext* context,
                                            const v1::ListInvitationsRequest* request,
                                            v1::ListInvitationsResponse* response) override;
  grpc::ServerUnaryReactor* RevokeInvitation(grpc::CallbackServerContext* context,
                                             const v1::RevokeInvitationRequest* request,
                                             v1::RevokeInvitationResponse* response) override;
  grpc::ServerUnaryReactor* Enroll(grpc::CallbackServerContext* context,
                                   const v1::EnrollRequest* request,
                                   v1::EnrollResponse* response) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const v1::EnrollRequest* request,
                                  v1::EnrollResponse* response) override;

 private:
  // Admits the call, and finishes it with what `answer` makes of it.
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Action action,
                                   const std::function<absl::Status(const Peer& peer)>& answer);

  Access& access_;
  OwnAuthority* const authority_;
  const Hooks hooks_;
};

}  // namespace causeway::server
