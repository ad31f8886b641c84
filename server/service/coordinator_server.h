// The coordinator's gRPC server: the three services on one port, the threads behind them, and the
// clock that ticks.
#ifndef CAUSEWAY_SERVER_SERVICE_COORDINATOR_SERVER_H_
#define CAUSEWAY_SERVER_SERVICE_COORDINATOR_SERVER_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/coordinator.h"
#include "server/service/admin_service.h"
#include "server/service/exchange_service.h"
#include "server/service/session_service.h"
#include "server/service/work_queue.h"

namespace causeway::server {

class CoordinatorServer {
 public:
  // Listens on HOST:PORT (port 0: any free one), without encryption. The coordinator outlives the
  // result. INVALID_ARGUMENT for a malformed address, UNAVAILABLE if it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const std::string& address,
                                                                  Coordinator& coordinator);
  // Stops with a deadline of a second.
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  int port() const { return port_; }

  // Takes no new calls, waits that long for those under way, cancels the rest. Shut the
  // coordinator down first, so that sessions and waiting pulls end by themselves. May be called
  // again.
  void Stop(absl::Duration deadline);

 private:
  explicit CoordinatorServer(Coordinator& coordinator);
  void TickLoop();
  void MaintainLoop();

  Coordinator& coordinator_;
  ByteBudget push_memory_;
  WorkQueue work_;
  SessionService session_;
  ExchangeService exchange_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
  std::thread maintainer_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_COORDINATOR_SERVER_H_
