#include "server/round/token_budget.h"

#include <algorithm>
#include <cmath>

namespace causeway::server {
namespace {

// Longer than any run: 2^40 steps is the largest train.steps.
constexpr double kFar = 1e15;

bool Trains(const Member& member) {
  return member.state == v1::Member::ACTIVE && member.progress.step_time() > absl::ZeroDuration();
}

// Where the fastest member is `ahead` after its last heartbeat, if it never waits.
int64_t FarthestStep(const std::map<std::string, Member>& members, absl::Duration ahead) {
  int64_t farthest = 0;
  for (const auto& [id, member] : members) {
    if (!Trains(member)) continue;
    const double steps =
        std::min(kFar, std::ceil(absl::FDivDuration(ahead, member.progress.step_time())));
    farthest = std::max(farthest, member.step + static_cast<int64_t>(steps) + 1);
  }
  return farthest;
}

}  // namespace

int64_t TokensTrained(const std::map<std::string, Member>& members) {
  int64_t tokens = 0;
  for (const auto& [id, member] : members) tokens += member.progress.tokens;
  return tokens;
}

std::optional<int64_t> StopStepForTokens(const std::map<std::string, Member>& members,
                                         int64_t tokens_per_inner_step, int64_t at_tokens,
                                         absl::Duration lease) {
  // With everybody at step s, the tokens are base + rate * s.
  auto base = static_cast<double>(TokensTrained(members));
  double rate = 0;
  for (const auto& [id, member] : members) {
    if (!Trains(member)) continue;
    const double per_step = tokens_per_inner_step > 0
                                ? static_cast<double>(tokens_per_inner_step) * member.workers() *
                                      1000 / static_cast<double>(member.progress.pace_milli)
                                : member.progress.tokens_per_second *
                                      absl::ToDoubleSeconds(member.progress.step_time());
    base -= per_step * static_cast<double>(member.step);
    rate += per_step;
  }
  if (rate <= 0) return std::nullopt;
  const double exact = (static_cast<double>(at_tokens) - base) / rate;
  const auto needed = static_cast<int64_t>(std::ceil(std::clamp(exact, 0.0, kFar)));
  if (needed > FarthestStep(members, lease)) return std::nullopt;
  return std::max(needed, FarthestStep(members, lease * 2 / 3));
}

}  // namespace causeway::server
