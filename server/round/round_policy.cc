#include "server/round/round_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace causeway::server {
namespace {

bool Expects(const OpenRound& round, const Member& member) {
  return member.state == MemberState::kActive && member.active_from_step < round.send_step;
}

// "worker-1 (step 40 of 60)", or "(sending)" once it is past the send step.
std::string DescribeMissing(const OpenRound& round, const Member& member) {
  if (member.step >= round.send_step) return absl::StrCat(member.id, " (sending)");
  return absl::StrCat(member.id, " (step ", member.step, " of ", round.send_step, ")");
}

// When the quorum was reached; the caller checks that it is.
absl::Duration QuorumReached(const OpenRound& round, int quorum) {
  std::vector<absl::Duration> times;
  for (const auto& [id, arrival] : round.arrivals) times.push_back(arrival);
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(quorum - 1)];
}

}  // namespace

Decision Decide(absl::Duration now, const OpenRound& round,
                const std::map<std::string, Member>& members, const RoundPolicy& policy) {
  Decision decision;
  const int quorum = std::max(1, policy.quorum);
  const int contributed = static_cast<int>(round.arrivals.size());
  int active = 0;
  bool somebody_is_there = contributed > 0;
  std::vector<std::string> described;
  for (const auto& [id, member] : members) {
    if (member.state == MemberState::kActive) {
      ++active;
      somebody_is_there |= member.step >= round.send_step;
    }
    if (!Expects(round, member) || round.arrivals.contains(id)) continue;
    decision.missing.push_back(id);
    described.push_back(DescribeMissing(round, member));
  }

  if (contributed == 0 && decision.missing.empty() && active > 0) {
    decision.action = Decision::kCloseEmpty;
    decision.reason = absl::StrCat("nobody can contribute: every active worker began after step ",
                                   round.send_step);
    return decision;
  }
  if (contributed < quorum) {
    if (!somebody_is_there) return decision;
    decision.reason =
        absl::StrCat("quorum not reached (", contributed, " of ", quorum, "): waiting for ",
                     described.empty() ? "another worker to join" : absl::StrJoin(described, ", "));
    return decision;
  }
  if (decision.missing.empty()) {
    decision.action = Decision::kClose;
    decision.reason = absl::StrCat("every expected worker contributed (", contributed, ")");
    return decision;
  }
  if (policy.grace > absl::ZeroDuration()) {
    const absl::Duration waited = now - QuorumReached(round, quorum);
    if (waited >= policy.grace) {
      decision.action = Decision::kClose;
      decision.reason = absl::StrCat("closed ", absl::FormatDuration(policy.grace),
                                     " after the quorum without ", absl::StrJoin(described, ", "));
      return decision;
    }
  }
  decision.reason = absl::StrCat("waiting for ", absl::StrJoin(described, ", "));
  return decision;
}

int64_t StartStep(const std::vector<OpenRound>& open_rounds,
                  const std::map<std::string, Member>& members, int64_t largest_step,
                  const RoundPolicy& policy) {
  const int quorum = std::max(1, policy.quorum);
  int64_t start = largest_step;
  for (const OpenRound& round : open_rounds) {
    auto reachable = static_cast<int>(round.arrivals.size());
    for (const auto& [id, member] : members) {
      if (Expects(round, member) && !round.arrivals.contains(id)) ++reachable;
    }
    if (reachable < quorum) start = std::min(start, round.send_step - 1);
  }
  return std::max<int64_t>(0, start);
}

}  // namespace causeway::server
