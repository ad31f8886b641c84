// causeway.v1.Admin: status and directives for operators.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "causeway/v1/admin.grpc.pb.h"
#include "server/access/access.h"
#include "server/core/served_run.h"
#include "server/service/worker_links.h"

namespace causeway::server {

class AdminService final : public v1::Admin::CallbackService {
 public:
  using PastEvents = std::function<v1::ListEventsResponse(int64_t after)>;

  // All outlive the service. `past_events` is thread-safe, or empty: then nobody keeps any.
  AdminService(const ServedRun& run, Access& access, const WorkerLinks& links,
               PastEvents past_events)
      : run_(run), access_(access), links_(links), past_events_(std::move(past_events)) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::RunStatus* response) override;
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context,
                                       const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const v1::PauseRequest* request,
                                  v1::PauseResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::ResumeResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Reject(grpc::CallbackServerContext* context,
                                   const v1::RejectRequest* request,
                                   v1::RejectResponse* response) override;
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context,
                                 const v1::StopRequest* request,
                                 v1::StopResponse* response) override;

 private:
  // Ends the call with `checked`, the request's own fault, or with what the order comes to.
  grpc::ServerUnaryReactor* Order(grpc::CallbackServerContext& context, absl::Status checked,
                                  absl::FunctionRef<absl::Status(Orders&)> order);

  const ServedRun& run_;
  Access& access_;
  const WorkerLinks& links_;
  const PastEvents past_events_;
};

}  // namespace causeway::server
