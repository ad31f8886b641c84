// causeway.v1.Exchange: fragments in both directions, over lanes. Messages are taken and given as
// gRPC's own buffers, so that data is copied at most once (common/transfer/chunk_message.h).
#ifndef CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_

#include "causeway/v1/exchange.grpc.pb.h"
#include "server/service/access.h"
#include "server/service/lane_reactor.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {

class ExchangeService final
    : public v1::Exchange::WithRawCallbackMethod_Carry<v1::Exchange::Service> {
 public:
  // Both outlive the service.
  ExchangeService(Access& access, LaneRegistry& lanes) : access_(access), lanes_(lanes) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Carry(
      grpc::CallbackServerContext* context) override {
    return LaneReactor::Make(access_, lanes_, context, access_.Admit(*context, Action::kPull));
  }

 private:
  Access& access_;
  LaneRegistry& lanes_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
