// How the processes of a site find each other: process 0 listens (site_door.h), the others come to
// it (VisitSite). With a secret they speak mutual TLS with a certificate that is made of it, and
// nobody else gets in or reads along; without one, plaintext.
#ifndef CAUSEWAY_WORKER_RENDEZVOUS_SITE_RENDEZVOUS_H_
#define CAUSEWAY_WORKER_RENDEZVOUS_SITE_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "worker/group/launch_environment.h"
#include "worker/group/shared_cause.h"
#include "worker/group/site_link.h"

namespace causeway::worker {

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

// How soon a peer is missed that is off the network or stopped: after half a minute.
inline constexpr int kSiteKeepaliveMs = 10'000;
inline constexpr int kSiteKeepaliveTimeoutMs = 20'000;

// HOST:PORT of process 0.
inline std::string SiteAddress(const LaunchEnvironment& launch) {
  const bool is_ipv6 = launch.master_address.find(':') != std::string::npos;
  return absl::StrCat(is_ipv6 ? "[" : "", launch.master_address, is_ipv6 ? "]:" : ":",
                      launch.master_port);
}
inline std::string NameOfProcess(int process) {
  return absl::StrCat("process ", process, " of this site");
}

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_RENDEZVOUS_SITE_RENDEZVOUS_H_
