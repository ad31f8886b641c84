// How the processes of a site find each other: process 0 listens (SiteDoor), the others come to it
// (VisitSite). With a secret they speak mutual TLS with a certificate that is made of it, and
// nobody else gets in or reads along; without one, plaintext.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_context.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/site.grpc.pb.h"
#include "common/identity/authority.h"
#include "worker/sync/local_group.h"
#include "worker/sync/process_link.h"

namespace causeway::worker {

// Which of a site's processes this is, as torchrun says it in the environment, or a Slurm script
// that exports the same names (docs/gpu.md has one):
//
//   RANK, WORLD_SIZE              this process among all of the site, and how many there are
//   LOCAL_RANK, LOCAL_WORLD_SIZE  the same among those of this machine
//   MASTER_ADDR, MASTER_PORT      where process 0 can be reached
//
// Without RANK and WORLD_SIZE the process is the only one.

struct LaunchEnvironment {
  int process = 0;
  int processes = 1;
  int local_process = 0;
  int local_processes = 1;
  std::string master_address;  // Empty if there is one process.
  int master_port = 0;
};

// Returns the environment's value of a name; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(absl::string_view name)>;
std::optional<std::string> ProcessEnvironment(absl::string_view name);

// INVALID_ARGUMENT names the variable that is missing or wrong, and what it should be. Where
// torchrun's own store listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), `master_port` is the
// one after it.
absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const Environment& environment);

// Which of the GPUs that the process sees are its own: an equal share of them if it sees enough for
// all processes of the machine, all of them if its launcher shows it fewer. INVALID_ARGUMENT if
// they cannot be shared out.
absl::StatusOr<std::vector<int>> DevicesOfProcess(const LaunchEnvironment& launch,
                                                  const std::vector<int>& visible);

struct SiteRendezvous {
  LaunchEnvironment launch;
  // Who has another one belongs to another run or another worker: it is turned away.
  uint64_t token = 0;
  // All processes of the site know this and nobody else; empty: none.
  std::string secret;
  std::shared_ptr<SharedCause> cause;
  absl::Duration patience = absl::Minutes(10);
};

// The others: looks for process 0 until it is welcome; the link has not been started.
// FAILED_PRECONDITION if it is turned away, DEADLINE_EXCEEDED, with what came of the last try,
// after `patience`; the cause, once there is one.
absl::StatusOr<std::unique_ptr<SiteLink>> VisitSite(const SiteRendezvous& rendezvous);

inline std::string NameOfProcess(int process) {
  return absl::StrCat("process ", process, " of this site");
}

// A site's own certificate: all its processes make the same one from their secret, show it, and
// trust no other. A function of the secret alone. Takes a tenth of a second, so that guessing takes
// long.
absl::StatusOr<KeyedCertificate> CertificateOfSite(const std::string& secret);

// Where process 0 of a site waits for the others.

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
