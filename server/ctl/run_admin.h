// An operator's connection to a coordinator.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/admin.grpc.pb.h"
#include "causeway/v1/enrollment.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/security.h"

namespace causeway::server {

// Whether the coordinator was away, or stopped while it answered.
bool IsNoAnswer(const absl::Status& status);

// Not thread-safe. Errors are those of admin.proto and enrollment.proto; UNAVAILABLE and
// DEADLINE_EXCEEDED name the address and say what to look at.
class RunAdmin {
 public:
  // Does not connect yet. Every call ends within `timeout`.
  RunAdmin(const std::string& address, const std::string& target, const ChannelSecurity& security,
           absl::Duration timeout);

  absl::StatusOr<v1::RunStatus> GetStatus();
  absl::StatusOr<v1::RunConfig> GetConfig();
  absl::StatusOr<v1::ListEventsResponse> ListEvents(int64_t after);
  absl::Status Pause(const std::string& reason);
  absl::Status Resume();
  // Empty: all workers.
  absl::Status Drain(const std::string& worker_id);
  absl::Status Reject(const v1::RejectRequest& order);
  // One of them is 0.
  absl::Status Stop(int64_t at_step, int64_t at_tokens);

  absl::StatusOr<v1::InviteResponse> Invite(const v1::InviteRequest& request);
  absl::StatusOr<v1::ListInvitationsResponse> ListInvitations();
  absl::Status RevokeInvitation(const std::string& name);

  // To the same coordinator.
  RenewedChannel& channel() { return channel_; }

 private:
  template <typename Service, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Response*),
                                const Request& request);

  const std::string address_;
  const absl::Duration timeout_;
  RenewedChannel channel_;  // Who watches may do so for longer than a certificate lives.
};

}  // namespace causeway::server
