// The other processes' way to process 0.
#ifndef CAUSEWAY_WORKER_RENDEZVOUS_SITE_VISIT_H_
#define CAUSEWAY_WORKER_RENDEZVOUS_SITE_VISIT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/group/site_link.h"
#include "worker/rendezvous/site_rendezvous.h"

namespace causeway::worker {

// Looks for process 0 until it is welcome; the link has not been started. FAILED_PRECONDITION if it
// is turned away, DEADLINE_EXCEEDED, with what came of the last try, after `patience`; the cause,
// once there is one.
absl::StatusOr<std::unique_ptr<SiteLink>> VisitSite(const SiteRendezvous& rendezvous);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_RENDEZVOUS_SITE_VISIT_H_
