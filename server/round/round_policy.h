// When a round closes, and why. Pure functions of their arguments.
//
// A round of a fragment expects every active member that trains up to the round's send step: those
// whose Ready.step is before it. It closes when all of them have contributed and the quorum is
// reached; with a grace window it closes that long after the quorum was reached, without those who
// are late. What a member contributed counts even if it died or left meanwhile; a member that died
// or left is no longer waited for.
//
// A round that nobody can contribute to any more (whoever was to send it died before it did, and
// all others began after its send step) is published empty, so that the fragment's numbering keeps
// pace with the schedule.
#ifndef CAUSEWAY_SERVER_ROUND_ROUND_POLICY_H_
#define CAUSEWAY_SERVER_ROUND_ROUND_POLICY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/round/membership.h"

namespace causeway::server {

struct RoundPolicy {
  int quorum = 1;
  absl::Duration grace = absl::ZeroDuration();  // 0: wait for every live member.
};

// One fragment's open round.
struct OpenRound {
  int fragment = 0;
  int64_t round = 0;
  int64_t send_step = 0;
  // Accepted contributions: worker id -> when it arrived (monotonic).
  std::map<std::string, absl::Duration> arrivals = {};
};

struct Decision {
  enum Action { kWait, kClose, kCloseEmpty };
  Action action = kWait;
  // For people: "waiting for worker-1 (step 40 of 60)". Empty when there is nothing to wait for
  // yet, because the round's send step lies ahead of every member.
  std::string reason;
  // Members that are expected and have not contributed, sorted.
  std::vector<std::string> missing;
};

// `members` as in Membership::members().
Decision Decide(absl::Duration now, const OpenRound& round,
                const std::map<std::string, Member>& members, const RoundPolicy& policy);

// The step at which a worker without a checkpoint of its own should start: the largest step that a
// member has reported, but early enough to contribute to every open round that would otherwise
// never reach its quorum.
int64_t StartStep(const std::vector<OpenRound>& open_rounds,
                  const std::map<std::string, Member>& members, int64_t largest_step,
                  const RoundPolicy& policy);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_ROUND_ROUND_POLICY_H_
