#include "server/round/round_policy.h"

#include "absl/strings/str_join.h"

namespace causeway::server {
namespace {

bool Expects(const OpenRound& round, const Member& member) {
  return member.record.state() == v1::Member::ACTIVE && !member.rejected &&
         member.record.active_from_step() < round.send_step;
}

// "worker-1 (step 40 of 60)", or "(sending)" once it is past the send step.
std::string DescribeMissing(const OpenRound& round, const Member& member) {
  if (member.record.step() >= round.send_step)
    return absl::StrCat(member.record.worker_id(), " (sending)");
  return absl::StrCat(member.record.worker_id(), " (step ", member.record.step(), " of ",
                      round.send_step, ")");
}

// A region counts as its sites.
int WorkersOf(const std::string& id, const std::map<std::string, Member>& members) {
  const auto member = members.find(id);
  return member == members.end() ? 1 : member->second.workers();
}

// When the quorum was reached; the caller checks that it is.
absl::Duration QuorumReached(const OpenRound& round, const std::map<std::string, Member>& members,
                             int quorum) {
  std::vector<absl::Duration> times;
  for (const auto* heard : {&round.arrivals, &round.quarantined}) {
    for (const auto& [id, arrival] : *heard) {
      times.insert(times.end(), static_cast<size_t>(WorkersOf(id, members)), arrival);
    }
  }
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(quorum - 1)];
}

// When the round's answer must be published so that this contributor does not wait for it.
// Infinite if it needs none or its speed is not known.
absl::Duration AnswerDue(const OpenRound& round, const Member& member, absl::Duration arrival,
                         int64_t overlap_steps) {
  const absl::Duration step_time = member.progress.step_time();
  if (member.record.state() != v1::Member::ACTIVE || step_time <= absl::ZeroDuration()) {
    return absl::InfiniteDuration();
  }
  // It had done the send step when its delta arrived, and somewhat more: the upload took time. A
  // heartbeat since then knows better.
  absl::Duration due = arrival + step_time * overlap_steps;
  if (member.record.step() >= round.send_step) {
    const int64_t left = round.send_step + overlap_steps - member.record.step();
    due = std::min(due, member.progress.reported_at + step_time * left);
  }
  absl::Duration delivery = round.merge_time + kDecisionMargin;
  if (member.progress.download_bytes_per_s > 0) {
    delivery += absl::Seconds(static_cast<double>(round.answer_bytes) /
                              member.progress.download_bytes_per_s);
  }
  return due - delivery;
}

struct Window {
  absl::Duration end;
  std::string needed_by;  // Empty: it ends with the fixed grace.
};

// The policy has a grace, and the quorum was reached at `quorum_reached`. `expected`: all of whom
// contributions are known or waited for.
Window GraceWindow(const OpenRound& round, const std::map<std::string, Member>& members,
                   const RoundPolicy& policy, absl::Duration quorum_reached, int expected) {
  Window window{.end = quorum_reached + policy.grace, .needed_by = ""};
  const int heard = static_cast<int>(round.arrivals.size() + round.quarantined.size());
  const bool of_many = expected >= kNeededByTwo;
  const int majority = of_many ? expected / 2 + 1 : (expected + 1) / 2;
  if (!policy.adaptive || heard < majority) return window;
  const absl::Duration opened = std::max(quorum_reached, QuorumReached(round, {}, majority));
  std::vector<std::pair<absl::Duration, std::string>> needs;
  for (const auto& [id, arrival] : round.arrivals) {
    const auto member = members.find(id);
    if (member == members.end()) continue;
    needs.emplace_back(
        std::max(opened, AnswerDue(round, member->second, arrival, policy.overlap_steps)), id);
  }
  std::sort(needs.begin(), needs.end());
  const size_t ends = of_many ? 1 : 0;
  if (needs.size() > ends && needs[ends].first < window.end) {
    window = {.end = needs[ends].first, .needed_by = needs[ends].second};
  }
  return window;
}

std::string ForPeople(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(10)));
}

}  // namespace

Decision Decide(absl::Duration now, const OpenRound& round,
                const std::map<std::string, Member>& members, const RoundPolicy& policy) {
  Decision decision;
  const bool beyond_stop = policy.stop_step > 0 && round.send_step > policy.stop_step;
  const int quorum = beyond_stop ? 1 : std::max(1, policy.quorum);
  const int contributed = static_cast<int>(round.arrivals.size());
  const int heard = contributed + static_cast<int>(round.quarantined.size());
  int workers_heard = 0;
  for (const auto& [id, arrival] : round.arrivals) workers_heard += WorkersOf(id, members);
  for (const auto& [id, arrival] : round.quarantined) workers_heard += WorkersOf(id, members);
  int active = 0;
  bool somebody_is_there = heard > 0;
  std::vector<std::string> described;
  for (const auto& [id, member] : members) {
    if (member.record.state() == v1::Member::ACTIVE) {
      // Nothing comes of those that are kept out: a round of theirs alone is not empty, it waits.
      active += member.rejected ? 0 : 1;
      somebody_is_there |= member.record.step() >= round.send_step;
    }
    if (!Expects(round, member) || round.arrivals.contains(id) || round.quarantined.contains(id)) {
      continue;
    }
    if (beyond_stop && member.record.step() < round.send_step) continue;  // It stops before.
    decision.missing.push_back(id);
    described.push_back(DescribeMissing(round, member));
  }

  if (beyond_stop && heard == 0) return decision;
  if (contributed == 0 && decision.missing.empty() && active > 0) {
    decision.action = Decision::kCloseEmpty;
    decision.reason =
        heard > 0 ? "every contribution is quarantined"
                  : absl::StrCat("nobody can contribute: every active worker began after step ",
                                 round.send_step);
    return decision;
  }
  if (contributed == 0 || workers_heard < quorum) {
    if (!somebody_is_there) return decision;
    decision.reason =
        absl::StrCat("quorum not reached (", workers_heard, " of ", quorum, "): waiting for ",
                     described.empty() ? "another worker to join" : absl::StrJoin(described, ", "));
    return decision;
  }
  if (decision.missing.empty()) {
    decision.action = Decision::kClose;
    decision.reason = absl::StrCat("every expected worker contributed (", contributed, ")");
    return decision;
  }
  decision.reason = absl::StrCat("waiting for ", absl::StrJoin(described, ", "));
  if (policy.grace <= absl::ZeroDuration()) return decision;
  const absl::Duration quorum_reached = QuorumReached(round, members, quorum);
  const int expected = heard + static_cast<int>(decision.missing.size());
  const Window window = GraceWindow(round, members, policy, quorum_reached, expected);
  decision.wait_until = window.end;
  if (now >= window.end) {
    decision.action = Decision::kClose;
    decision.reason = absl::StrCat(
        "closed ", ForPeople(window.end - quorum_reached), " after the quorum",
        window.needed_by.empty() ? "" : absl::StrCat(", when ", window.needed_by, " needed it,"),
        " without ", absl::StrJoin(described, ", "));
    return decision;
  }
  absl::StrAppend(&decision.reason, " for at most ", ForPeople(window.end - now), " more: then ",
                  window.needed_by.empty() ? "the grace ends"
                                           : absl::StrCat(window.needed_by, " needs the answer"));
  return decision;
}

int64_t StartStep(const std::vector<OpenRound>& open_rounds,
                  const std::map<std::string, Member>& members, int64_t largest_step,
                  const RoundPolicy& policy) {
  const int quorum = std::max(1, policy.quorum);
  int64_t start = largest_step;
  for (const OpenRound& round : open_rounds) {
    int reachable = 0;
    for (const auto& [id, arrival] : round.arrivals) reachable += WorkersOf(id, members);
    for (const auto& [id, member] : members) {
      if (Expects(round, member) && !round.arrivals.contains(id)) reachable += member.workers();
    }
    if (reachable < quorum) start = std::min(start, round.send_step - 1);
  }
  return std::max<int64_t>(0, start);
}

int64_t LikelyStep(absl::Duration now, const std::map<std::string, Member>& members) {
  int64_t likely = 0;
  for (const auto& [id, member] : members) {
    if (member.record.state() != v1::Member::ACTIVE) continue;
    const absl::Duration step_time = member.progress.step_time();
    int64_t since = 0;
    if (step_time > absl::ZeroDuration()) {
      absl::Duration rest;
      since = absl::IDivDuration(now - member.progress.reported_at, step_time, &rest);
    }
    likely = std::max(likely, member.record.step() + std::max<int64_t>(0, since));
  }
  return likely;
}

}  // namespace causeway::server
