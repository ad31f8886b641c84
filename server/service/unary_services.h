// causeway.v1.Admin and causeway.v1.Enrollment: status and orders for operators; who may ask, and
// what the run's own authority answers.
#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "causeway/v1/admin.pb.h"
#include "common/rpc/tcp_links.h"
#include "server/access/access.h"
#include "server/access/own_authority.h"
#include "server/core/served_run.h"

namespace causeway::server {

// Ends a call with one answer.
grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status);

// Reads what TCP says of every worker's connections, at the coordinator's end.
//
// A worker's calls tell which connections are its own: each is noted with the address that it came
// from. Sample reads the figures now and then.

// Thread-safe.
class WorkerLinks {
 public:
  // A call for that worker came from `peer`, as gRPC writes addresses. What is beyond 1024 workers,
  // or 64 connections of one between two samples, is not followed; nor are ids that no member can
  // have. Workers without connections make way for others.
  void Note(absl::string_view worker_id, absl::string_view peer);

  // Reads the figures of all connections that were accepted on this port, and forgets those that
  // have ended.
  void Sample(int port);

  // Fills in WorkerStatus.coordinator_link as of the last sample.
  void AddTo(v1::RunStatus& status) const;

 private:
  struct Worker {
    std::vector<TcpAddress> peers;
    TcpLinkTotals totals;
    TcpLink link;
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);
};

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
