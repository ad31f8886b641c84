// causeway.v1.Exchange: fragments in both directions. Bulk messages are taken and given as gRPC's
// own buffers, so that data is copied at most once (common/rpc/chunk_message.h).
#ifndef CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/exchange.grpc.pb.h"
#include "server/service/access.h"
#include "server/service/pull_table.h"
#include "server/service/push_table.h"
#include "server/service/work_queue.h"

namespace causeway::server {

class ExchangeService final
    : public v1::Exchange::WithRawCallbackMethod_Push<v1::Exchange::WithRawCallbackMethod_Pull<
          v1::Exchange::WithCallbackMethod_QueryTransfer<v1::Exchange::Service>>> {
 public:
  // All outlive the service. `unpack` runs what takes as long as unpacking a chunk.
  ExchangeService(Access& access, PushTable& pushes, PullTable& pulls, Runner unpack)
      : access_(access), pushes_(pushes), pulls_(pulls), unpack_(std::move(unpack)) {}

  grpc::ServerReadReactor<grpc::ByteBuffer>* Push(grpc::CallbackServerContext* context,
                                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Pull(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* QueryTransfer(grpc::CallbackServerContext* context,
                                          const v1::QueryTransferRequest* request,
                                          v1::QueryTransferResponse* response) override;

  // Ends the transfers of peers whose token, certificate or name does not count any more.
  void EndRevokedStreams();

 private:
  // A transfer under way. `end` is false if it is over, and ends it unless the status is OK.
  struct Transfer {
    Peer peer;
    std::function<bool(const absl::Status& status)> end;
  };
  template <typename Reactor>
  void Watch(Peer peer, Reactor* reactor);

  Access& access_;
  PushTable& pushes_;
  PullTable& pulls_;
  const Runner unpack_;
  absl::Mutex mutex_;
  std::vector<Transfer> transfers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_EXCHANGE_SERVICE_H_
