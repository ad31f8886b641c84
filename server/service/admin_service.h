// causeway.v1.Admin: status and directives for operators.
#ifndef CAUSEWAY_SERVER_SERVICE_ADMIN_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_ADMIN_SERVICE_H_

#include "causeway/v1/admin.grpc.pb.h"
#include "server/core/coordinator.h"
#include "server/service/access.h"
#include "server/service/worker_links.h"

namespace causeway::server {

class AdminService final : public v1::Admin::CallbackService {
 public:
  // All outlive the service.
  AdminService(Coordinator& coordinator, Access& access, const WorkerLinks& links)
      : coordinator_(coordinator), access_(access), links_(links) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::RunStatus* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const v1::PauseRequest* request,
                                  v1::PauseResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::ResumeResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context,
                                 const v1::StopRequest* request,
                                 v1::StopResponse* response) override;

 private:
  Coordinator& coordinator_;
  Access& access_;
  const WorkerLinks& links_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_ADMIN_SERVICE_H_
