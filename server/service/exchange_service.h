// causeway.v1.Exchange: fragments in both directions.
#ifndef CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_

#include "causeway/v1/exchange.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/service/work_queue.h"

namespace causeway::server {

class ExchangeService final : public v1::Exchange::CallbackService {
 public:
  // All outlive the service. `push_memory` bounds the objects that are being received or
  // verified; those of open rounds are bounded by one for each member and fragment.
  ExchangeService(Coordinator& coordinator, WorkQueue& work, ByteBudget& push_memory)
      : coordinator_(coordinator), work_(work), push_memory_(push_memory) {}

  grpc::ServerReadReactor<v1::PushRequest>* Push(grpc::CallbackServerContext* context,
                                                 v1::PushResponse* response) override;
  grpc::ServerWriteReactor<v1::PullResponse>* Pull(grpc::CallbackServerContext* context,
                                                   const v1::PullRequest* request) override;
  grpc::ServerUnaryReactor* QueryTransfer(grpc::CallbackServerContext* context,
                                          const v1::QueryTransferRequest* request,
                                          v1::QueryTransferResponse* response) override;

 private:
  Coordinator& coordinator_;
  WorkQueue& work_;
  ByteBudget& push_memory_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
