// causeway.v1.Exchange: fragments in both directions. Bulk messages are taken and given as gRPC's
// own buffers, so that data is copied at most once (common/transfer/chunk_message.h).
#ifndef CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_

#include <utility>

#include "causeway/v1/exchange.grpc.pb.h"
#include "server/service/access.h"
#include "server/service/pull_table.h"
#include "server/service/push_table.h"
#include "common/base/work_queue.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {

class ExchangeService final
    : public v1::Exchange::WithRawCallbackMethod_Push<v1::Exchange::WithRawCallbackMethod_Pull<
          v1::Exchange::WithCallbackMethod_QueryTransfer<
              v1::Exchange::WithRawCallbackMethod_Carry<v1::Exchange::Service>>>> {
 public:
  // All outlive the service. `unpack` runs what takes as long as unpacking a chunk.
  ExchangeService(Access& access, PushTable& pushes, PullTable& pulls, Runner unpack,
                  LaneRegistry& lanes)
      : access_(access),
        pushes_(pushes),
        pulls_(pulls),
        unpack_(std::move(unpack)),
        lanes_(lanes) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Carry(
      grpc::CallbackServerContext* context) override;

  grpc::ServerReadReactor<grpc::ByteBuffer>* Push(grpc::CallbackServerContext* context,
                                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Pull(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* QueryTransfer(grpc::CallbackServerContext* context,
                                          const v1::QueryTransferRequest* request,
                                          v1::QueryTransferResponse* response) override;

 private:
  Access& access_;
  PushTable& pushes_;
  PullTable& pulls_;
  const Runner unpack_;
  LaneRegistry& lanes_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
