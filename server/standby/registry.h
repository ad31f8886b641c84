// Who leads a run, and which copies have all that was told: kept where all copies can see it.
//
// The seam to etcd (etcd_registry.h), so that tests need none.
#ifndef CAUSEWAY_SERVER_STANDBY_REGISTRY_H_
#define CAUSEWAY_SERVER_STANDBY_REGISTRY_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace causeway::server {

struct RegistryView {
  std::string cluster;          // Which registry answered.
  std::string leader;           // Empty: nobody leads.
  std::string address;          // Where it serves.
  int64_t leader_revision = 0;  // When it took the lead: the fencing token. Only grows.
  // The copies that have all that was told; whoever leads is one of them. Empty: the run is new.
  std::set<std::string> in_sync;
  int64_t set_revision = 0;  // When the set changed last.
};

// One process uses one. Not thread-safe. UNAVAILABLE, DEADLINE_EXCEEDED: nothing is known, also of
// whether a change was made.
class Registry {
 public:
  virtual ~Registry() = default;
  // As of now: not an older answer.
  virtual absl::StatusOr<RegistryView> Read() = 0;
  // Takes the lead until `ttl` after the last KeepAlive, with `name` alone in the set. False, and
  // nothing has changed, if somebody leads or the set is not that of `seen` any more.
  virtual absl::StatusOr<bool> Lead(const RegistryView& seen, const std::string& name,
                                    const std::string& address, absl::Duration ttl) = 0;
  // FAILED_PRECONDITION: the lease has ended.
  virtual absl::Status KeepAlive() = 0;
  // Replaces the set that `seen` shows. False, and nothing has changed, unless the leader that
  // `seen` shows leads still and the set is still that one.
  virtual absl::StatusOr<bool> ChangeSet(const RegistryView& seen,
                                         const std::set<std::string>& names) = 0;
  // Ends the lease, as far as it can be reached.
  virtual void Resign() = 0;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STANDBY_REGISTRY_H_
