// Decides when a round closes, and says why. Pure functions of their arguments.
//
// A round of a fragment expects every active member that trains up to the round's send step: those
// whose Ready.step is before it. It closes when all of them have contributed and the quorum is
// reached; with a grace window it closes that long after the quorum was reached, without those who
// are late. What a member contributed counts even if it died or left meanwhile; a member that died
// or left is no longer waited for.
//
// An adaptive window lasts as long as waiting costs nobody anything (arXiv 2604.21428 spends the
// same slack). A contributor needs its answer tau_max steps after its send, and trains no slower
// for waiting until then. So the window ends when the first contributor will be at that step, less
// the time of merging and delivering, and never later than the fixed one. Members say themselves
// when they need the answer, so one alone must not shut others out. The window opens when half of
// the expected have contributed; of kNeededByTwo and more it takes more than half, and the window
// ends when the second one needs the answer.
//
// A quarantined contribution (outlier.h, or an operator's order) is neither merged nor waited for,
// but its worker has been heard: it counts for the quorum as long as somebody else contributed.
// Nobody waits for a member whose contributions an operator keeps out.
//
// A round is published empty if nobody can contribute any more: its senders died, and all others
// began after its send step. So the fragment's numbering keeps pace with the schedule.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/round/membership.h"

namespace causeway::server {

// Taken off every adaptive window: decisions are asked for ten times a second, and the answer still
// has to be asked for, sent and merged.
inline constexpr absl::Duration kDecisionMargin = absl::Milliseconds(150);

// Expected contributions of which one alone does not end an adaptive window.
inline constexpr int kNeededByTwo = 4;

struct RoundPolicy {
  int quorum = 1;
  absl::Duration grace = absl::ZeroDuration();  // 0: wait for every live member.
  bool adaptive = false;                        // Then `grace` is only the bound.
  int64_t overlap_steps = 0;  // After its send: nobody waits for an answer any earlier (tau_max).
  // The step at which the run was told to stop; 0: none. Only members that were further already
  // contribute to later rounds, which close with those, whatever the quorum.
  int64_t stop_step = 0;
};

// One fragment's open round.
struct OpenRound {
  int fragment = 0;
  int64_t round = 0;
  int64_t send_step = 0;
  // Accepted contributions: worker id -> when it arrived (monotonic).
  std::map<std::string, absl::Duration> arrivals = {};
  // Held, but out of line; the same.
  std::map<std::string, absl::Duration> quarantined = {};
  // Time to publish the answer, for adaptive windows; 0: unknown.
  absl::Duration merge_time = absl::ZeroDuration();
  int64_t answer_bytes = 0;
};

struct Decision {
  enum Action { kWait, kClose, kCloseEmpty };
  Action action = kWait;
  // For people: "waiting for worker-1 (step 40 of 60)". Empty when there is nothing to wait for
  // yet, because the round's send step lies ahead of every member.
  std::string reason;
  // Members that are expected and have not contributed, sorted.
  std::vector<std::string> missing;
  // The time at which it closes if nobody contributes until then (monotonic). Infinite: not by time
  // alone.
  absl::Duration wait_until = absl::InfiniteDuration();
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

// The largest step that an active member has come to by now, should it have gone on as its last
// heartbeat said: those are seconds apart.
int64_t LikelyStep(absl::Duration now, const std::map<std::string, Member>& members);

}  // namespace causeway::server
