// One Exchange.Carry at the coordinator: a lane's stream over gRPC.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "common/rpc/self_owned.h"
#include "server/access/access.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {

class LaneReactor;

// Exchange of exchange.proto over gRPC: knows nothing of a lane but how it begins, and how it ends
// when its peer's credentials do.
class ExchangeService final
    : public v1::Exchange::WithRawCallbackMethod_Carry<v1::Exchange::Service> {
 public:
  // The lanes of the run, or why there are none.
  using FindLanes = std::function<absl::StatusOr<LaneRegistry*>()>;
  // Access and lanes outlive the service.
  ExchangeService(Access& access, FindLanes lanes) : access_(access), lanes_(std::move(lanes)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Carry(
      grpc::CallbackServerContext* context) override;

  // Ends the lanes of peers whose token, certificate or name does not count any more.
  void EndRevokedStreams();

 private:
  Access& access_;
  const FindLanes lanes_;
  OpenReactors<LaneReactor> open_;  // Of peers with an identity.
};

}  // namespace causeway::server
