// causeway.v1.Session: Describe, and one stream per worker.
#ifndef CAUSEWAY_SERVER_SERVICE_SESSION_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_SESSION_SERVICE_H_

#include "causeway/v1/session.grpc.pb.h"
#include "server/core/coordinator.h"

namespace causeway::server {

class SessionService final : public v1::Session::CallbackService {
 public:
  // The coordinator outlives the service.
  explicit SessionService(Coordinator& coordinator) : coordinator_(coordinator) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;

 private:
  Coordinator& coordinator_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_SESSION_SERVICE_H_
