// causeway.v1.Admin and causeway.v1.Enrollment: status and orders for operators; who may ask, and
// what the run's own authority answers.
#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "causeway/v1/admin.pb.h"
#include "server/access/access.h"
#include "server/access/own_authority.h"
#include "server/core/served_run.h"
#include "server/service/worker_links.h"

namespace causeway::server {

// Ends a call with one answer.
grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status);

using PastEvents = std::function<v1::ListEventsResponse(int64_t after)>;
// All outlive the service. `past_events` is thread-safe, or empty: then nobody keeps any.
std::unique_ptr<grpc::Service> MakeAdminService(const ServedRun& run, Access& access,
                                                const WorkerLinks& links, PastEvents past_events);

// Called on threads of gRPC.
struct EnrollmentHooks {
  std::function<void()> trust;                          // Who is trusted has changed.
  std::function<std::vector<std::string>()> addresses;  // HOST:PORT of this coordinator.
};
// `authority` may be null: the coordinator's certificates are from elsewhere. Both outlive this.
std::unique_ptr<grpc::Service> MakeEnrollmentService(Access& access, OwnAuthority* authority,
                                                     EnrollmentHooks hooks);

}  // namespace causeway::server
