// Keeps two coordinators from telling workers different things, by a registry.
//
// Rules, all of which hold whatever the clocks do:
//   1. Who leads changes by compare-and-swap alone, and only a copy of the in-sync set takes the
//      lead, which makes it the only one in the set.
//   2. The leader tells a fact only when every copy of the set has it. It takes a copy out of the
//      set before it goes on without it. A new copy waits in front of the set, and is asked for
//      every fact as the others are, until it has all that was told before.
//   3. A change of the set is compared with the lead: a former leader cannot make one. After a
//      change without an answer the set is written again before anything follows from it.
// So whoever takes the lead has all that was told. It follows nobody any more, so a former leader
// whose set it was in can tell nothing. After a leader that is alone in its set, only that one can
// lead. Beyond that, a leader stops by its own clock before its lease can end.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/telemetry/event_log.h"
#include "server/standby/standbys.h"

namespace causeway::server {

// Who leads a run, and which copies have all that was told: kept where all copies can see it.
//
// The seam to etcd (link/leading.h), so that tests need none.
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

// Serves one leader. Not thread-safe.
class Leadership {
 public:
  struct Options {
    std::string name;     // Name of this copy.
    std::string address;  // Where it serves.
    absl::Duration ttl = absl::Seconds(3);
    // A copy that makes no step for so long, while others wait for it, is taken out of the set.
    absl::Duration patience = absl::Seconds(5);
    const Clock* clock = nullptr;
    EventLog* events = NullEventLog();
  };
  // All outlive the object.
  Leadership(Registry& registry, Standbys& standbys, Options options);

  // Takes the lead, before anything is told. UNAVAILABLE, to be tried again: the registry is away,
  // or this copy's own former lease lasts still. FAILED_PRECONDITION: another one leads, or may
  // alone.
  absl::Status Take();
  // Keeps the lease and the set. Call it a few times a second. Once the lead is lost it closes the
  // standbys, for ever.
  void Tick();

 private:
  // Leads by a lease that was kept then.
  void Adopt(absl::Duration since);
  void KeepLease();
  void KeepSet();
  void TakeOut(const std::set<std::string>& late);
  void LetIn();
  // True if the change was made. The next Tick settles an outcome that is not known.
  bool ChangeSet(const std::set<std::string>& names);
  void Settle();
  void LookUp();
  // Says which copies are asked: those of the set, and the one in front of it.
  void Require();
  void Lose(const std::string& why);

  Registry& registry_;
  Standbys& standbys_;
  const Options options_;
  RegistryView view_;  // As this leader left it.
  bool unknown_ = false;
  bool lost_ = false;
  std::string joining_;  // In front of the set; empty: none.
  int64_t joining_at_ = 0;
  absl::Duration kept_at_ = absl::ZeroDuration();
  absl::Duration until_ = absl::ZeroDuration();
};

}  // namespace causeway::server
