// A run with its own authority, served over real TLS, and who is invited to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "causeway/v1/enrollment.grpc.pb.h"
#include "common/client/boarding.h"
#include "common/identity/invitation.h"
#include "common/rpc/status.h"
#include "tests/unit/server/service/secure_run.h"

namespace causeway::server {

inline constexpr absl::Duration kPatience = absl::Seconds(30);
// For what is refused: it is tried until the invitation could be known.
inline constexpr absl::Duration kShort = absl::Seconds(8);

class EnrollmentTest : public SecureRunTest {
 protected:
  EnrollmentTest() { Serve(Options()); }
  CoordinatorServer::Options Options() {
    CoordinatorServer::Options options;
    options.authority_folder = folder_.path("authority");
    options.operator_folder = folder_.path("operator");
    options.clock = &clock_;
    options.events = &events_;
    return options;
  }
  const std::string& address() const { return server_->address(); }
  Boarded Operator() { return Board(folder_.path("operator"), "", kPatience).value(); }
  template <typename Service>
  std::unique_ptr<typename Service::Stub> As(const Boarded& member) {
    return Service::NewStub(With(member.security).channel);
  }
  absl::StatusOr<v1::InviteResponse> Ask(const Boarded& who, const v1::InviteRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::InviteResponse response;
    const absl::Status status =
        FromGrpcStatus(As<v1::Enrollment>(who)->Invite(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }
  v1::InviteRequest Request(const std::string& name, const std::string& secret) {
    v1::InviteRequest request;
    request.set_name(name);
    request.set_role("worker");
    request.set_seconds(3600);
    request.set_certificate(CertificateOfInvitation(secret, name)->certificate);
    return request;
  }
  InvitationLine Invite(const std::string& name, const std::string& role = "worker") {
    const std::string secret = MakeInvitationSecret().value();
    v1::InviteRequest request = Request(name, secret);
    request.set_role(role);
    const auto made = Ask(Operator(), request).value();
    EXPECT_EQ(made.addresses_size(), 1);
    return {.addresses = {made.addresses(0)},
            .run = made.run_name(),
            .name = name,
            .pin = made.authority_sha256(),
            .secret = secret};
  }
  absl::StatusOr<Boarded> BoardIn(const std::string& folder, const InvitationLine& line,
                                  absl::Duration patience = kPatience) {
    return Board(FormatInvitation(line), folder_.path(folder), patience);
  }
  absl::Status Describe(const Boarded& member) {
    return SecureRunTest::Describe(With(member.security));
  }
  absl::Status Revoke(const std::string& name) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::RevokeInvitationRequest request;
    request.set_name(name);
    v1::RevokeInvitationResponse response;
    return FromGrpcStatus(
        As<v1::Enrollment>(Operator())->RevokeInvitation(&context, request, &response));
  }
};

}  // namespace causeway::server
