// A run whose fragments lie in several coordinators: one lead and its shards.
//
// Each has the state, the store, the rounds and the merges of its own fragments, in an ordinary run
// directory. The lead, which may have fragments of its own, has the sessions, the membership and
// the budget; a shard knows the members by the lead's rosters. It closes no round before it has
// heard one, nor while it hears nothing of the lead, so a member that is expected is waited for,
// and rounds come out with the bits that one coordinator would give them.
#ifndef CAUSEWAY_SERVER_CORE_SHARDS_H_
#define CAUSEWAY_SERVER_CORE_SHARDS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "causeway/v1/session.pb.h"
#include "causeway/v1/shards.pb.h"
#include "server/store/store.h"

namespace causeway::server {

// A shard that has heard no roster for so long closes no round, although its stream stands: its
// lead may have given it up, and go on without asking.
inline constexpr absl::Duration kLeadSilence = absl::Seconds(3);

// A shard's report of a round that it has published. `missing`: expected, but closed without.
v1::ShardReport RoundReport(const RoundRecord& record, const std::vector<std::string>& missing);

// The lead's way to its shards. Thread-safe; may call the coordinator from threads of its own.
class Shards {
 public:
  virtual ~Shards() = default;
  // UNAVAILABLE, with the names, while some have not said what they have since this process began.
  virtual absl::Status Complete() const = 0;
  virtual std::vector<v1::Shard> Where() const = 0;
  // Gives the roster to all that are attached, unless a newer one was given. `wait`: returns when
  // they have heard it, or are gone.
  virtual void Tell(const v1::ShardRoster& roster, bool wait) = 0;
  // Asks the shard that has the fragment. `done` is called once, possibly before this returns: with
  // its answer, or UNAVAILABLE if it is not attached.
  virtual void Call(int fragment, v1::ShardCall call,
                    std::function<void(const absl::Status&)> done) = 0;
};

// The part of a run that a coordinator has, if that is not all.
struct PartOptions {
  std::vector<int> fragments;  // Ascending.
  Shards* shards = nullptr;    // The lead's; outlives the coordinator. Null: this is a shard.
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_CORE_SHARDS_H_
