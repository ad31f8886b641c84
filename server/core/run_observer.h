// Who wants to see a run as it goes: a history for people, metrics.
#ifndef CAUSEWAY_SERVER_CORE_RUN_OBSERVER_H_
#define CAUSEWAY_SERVER_CORE_RUN_OBSERVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "causeway/v1/exchange.pb.h"
#include "causeway/v1/session.pb.h"
#include "server/store/store.h"

namespace causeway::server {

// Called by the coordinator without a lock held, on any thread, possibly on several at once: return
// soon, and never call the coordinator. Calls about one round may overtake each other by a little
// (an Applied may come before the OnPublished of its round).
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // Accepted, of a live member.
  virtual void OnHeartbeat(const std::string& /*worker_id*/, const v1::Heartbeat& /*heartbeat*/) {}
  // A worker was told to send that object. May be repeated for one object.
  virtual void OnPushBegun(const v1::PushHeader& /*header*/) {}
  // The object is in the store, once.
  virtual void OnContributed(const v1::PushHeader& /*header*/, bool /*quarantined*/) {}
  // `missing`: expected, but closed without.
  virtual void OnPublished(const v1::Round& /*round*/,
                           const std::vector<std::string>& /*missing*/) {}
  // The worker's copy has that round, with the right hash.
  virtual void OnApplied(const std::string& /*worker_id*/, int /*fragment*/, int64_t /*round*/) {}
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_RUN_OBSERVER_H_
