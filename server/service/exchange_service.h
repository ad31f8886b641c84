// Exchange of exchange.proto over gRPC: knows nothing of a lane but how it begins, and how it ends
// when its peer's credentials do.
#ifndef CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "server/access/access.h"
#include "server/service/lane_reactor.h"
#include "server/transfer/lane_registry.h"

namespace causeway::server {

class ExchangeService final
    : public v1::Exchange::WithRawCallbackMethod_Carry<v1::Exchange::Service> {
 public:
  // Both outlive the service.
  ExchangeService(Access& access, LaneRegistry& lanes) : access_(access), lanes_(lanes) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Carry(
      grpc::CallbackServerContext* context) override;

  // Ends the lanes of peers whose token, certificate or name does not count any more.
  void EndRevokedStreams();

 private:
  Access& access_;
  LaneRegistry& lanes_;
  absl::Mutex mutex_;
  std::vector<std::weak_ptr<LaneReactor>> open_ ABSL_GUARDED_BY(mutex_);  // Some have ended.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
