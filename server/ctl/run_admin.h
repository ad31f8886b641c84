// An operator's connection to a coordinator.
#pragma once

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

  absl::StatusOr<v1::RunStatus> GetStatus() {
    return Call(&v1::Admin::Stub::GetStatus, v1::GetStatusRequest());
  }
  // A call of Admin or Enrollment: Call(&v1::Admin::Stub::Pause, request).
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    absl::StatusOr<Response> response = CallOver(channels_.Now(), method, request, timeout_);
    if (!response.ok()) return Explain(response.status());
    return response;
  }

  // To the same coordinator.
  RenewedChannels& channels() { return channels_; }

 private:
  // With what to do: gRPC's own words say little of that.
  absl::Status Explain(const absl::Status& status) const;

  const std::string address_;
  const absl::Duration timeout_;
  RenewedChannels channels_;  // Who watches may do so for longer than a certificate lives.
};

}  // namespace causeway::server
