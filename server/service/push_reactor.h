// One Exchange.Push: reads the header and the chunks, has each verified (push_receiver.h), and
// hands the whole object to the coordinator on a thread of the work queue.
#ifndef CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_
#define CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "causeway/v1/exchange.pb.h"
#include "server/core/coordinator.h"
#include "server/service/push_receiver.h"
#include "server/service/self_owned.h"
#include "server/service/work_queue.h"

namespace causeway::server {

class PushReactor final : public SelfOwned<PushReactor, grpc::ServerReadReactor<v1::PushRequest>> {
 public:
  // All but `response` outlive the reactor; `response` lives until Finish.
  PushReactor(Coordinator& coordinator, WorkQueue& work, ByteBudget& memory,
              v1::PushResponse* response)
      : coordinator_(coordinator),
        work_(work),
        response_(response),
        receiver_(coordinator, memory) {}

  void Start() { StartRead(&request_); }
  void OnReadDone(bool ok) override;

 private:
  void End(const absl::Status& status);

  Coordinator& coordinator_;
  WorkQueue& work_;
  v1::PushResponse* const response_;
  // Touched by one callback or task at a time.
  v1::PushRequest request_;
  PushReceiver receiver_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PUSH_REACTOR_H_
