// How the processes of a site find each other: process 0 listens, the others come to it.
#ifndef CAUSEWAY_WORKER_GROUP_SITE_RENDEZVOUS_H_
#define CAUSEWAY_WORKER_GROUP_SITE_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/byte_buffer.h"
#include "worker/group/launch_environment.h"
#include "worker/group/shared_cause.h"
#include "worker/group/site_link.h"

namespace causeway::worker {

struct SiteRendezvous {
  LaunchEnvironment launch;
  // Who has another one belongs to another run or another worker: it is turned away.
  uint64_t token = 0;
  // What all processes of the site know and nobody else: each proves it to the other before they
  // belong together. Empty: whoever knows the names in `token` may be one.
  std::string secret;
  std::shared_ptr<SharedCause> cause;
  absl::Duration patience = absl::Minutes(10);
  // Hears of each caller whom process 0 turns away; may be empty.
  std::function<void(const std::string&)> on_stranger;
  // A socket that listens already, which is used instead of launch.master_port; -1: none.
  int listener = -1;
};

// Process 0's links to processes 1, 2, ... in this order; the others' link to process 0. None has
// been started. DEADLINE_EXCEEDED, with who is missing, where not all come together in time;
// FAILED_PRECONDITION for a port that is taken, for a process that comes twice, and to who is
// turned away. What process 0 fails with is the cause that those end with who have come.
absl::StatusOr<std::vector<std::unique_ptr<SiteLink>>> MeetSite(const SiteRendezvous& rendezvous);

// A socket that listens at `host`, if that is an address of this machine by itself or by a name
// that others know it by; else, and where it is empty, on all addresses. Port 0: any port that is
// free. FAILED_PRECONDITION if the port is taken.
absl::StatusOr<int> ListenOn(int port, const std::string& host = "");
absl::StatusOr<int> PortOf(int listener);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_GROUP_SITE_RENDEZVOUS_H_
