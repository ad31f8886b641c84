// Where process 0 of a site waits for the others.
#ifndef CAUSEWAY_WORKER_RENDEZVOUS_SITE_DOOR_H_
#define CAUSEWAY_WORKER_RENDEZVOUS_SITE_DOOR_H_

#include <grpcpp/server.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/site.grpc.pb.h"
#include "worker/group/site_link.h"
#include "worker/rendezvous/site_rendezvous.h"

namespace causeway::worker {

class SiteDoor final : private v1::Site::Service {
 public:
  // Listens at launch.master_address, if that is an address of this machine by itself or by a name
  // that others know it by; else on all addresses. Port 0: any port that is free.
  // FAILED_PRECONDITION if the port is taken.
  static absl::StatusOr<std::unique_ptr<SiteDoor>> Open(const SiteRendezvous& rendezvous);
  // After all links.
  ~SiteDoor() override;

  int port() const { return port_; }

  // The links to processes 1, 2, ... in this order; once. None has been started.
  // DEADLINE_EXCEEDED, with who is missing, where not all come within `patience`;
  // FAILED_PRECONDITION for a process that comes twice. What it fails with is the cause that those
  // end with who have come.
  absl::StatusOr<std::vector<std::unique_ptr<SiteLink>>> Gather();

 private:
  class Visitor;
  class ServerStream;
  using Stream = grpc::ServerReaderWriter<v1::SiteFrame, v1::SiteFrame>;

  explicit SiteDoor(const SiteRendezvous& rendezvous);
  bool Listen(const std::string& address, const std::shared_ptr<grpc::ServerCredentials>& security);
  grpc::Status Link(grpc::ServerContext* context, Stream* stream) override;
  // Keeps the visitor in its place until all have come; OK: they have.
  grpc::Status Attend(const v1::SiteHello& hello, const std::shared_ptr<Visitor>& visitor);
  grpc::Status TurnAway(const v1::SiteHello& hello, absl::string_view whose,
                        const std::string& why);
  absl::Status Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SiteRendezvous rendezvous_;
  const int processes_;
  int port_ = 0;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Visitor>> came_ ABSL_GUARDED_BY(mutex_);  // By process, from 1 on.
  absl::Status twice_ ABSL_GUARDED_BY(mutex_);                          // Who came twice.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // Nobody is waited for any more.
  std::set<std::string> turned_away_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;  // Last: its threads use the rest.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_RENDEZVOUS_SITE_DOOR_H_
