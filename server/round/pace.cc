#include "server/round/pace.h"

namespace causeway::server {
namespace {

constexpr double kEqual = 1.04;        // Up to this ratio, pace 1 is good enough,
constexpr double kEqualAgain = 1.015;  // and down to this one, another that there is.
constexpr double kAbove = 1.04;        // A new pace is so much above the ratio.
constexpr double kTooSlow = 1.02;      // Above pace * kTooSlow, the others would wait.
constexpr double kTooFast = 1.115;     // A pace of more than ratio * kTooFast gives away steps.

bool HasSpeed(const Member& member) {
  return member.record.state() == v1::Member::ACTIVE &&
         member.progress.inner_step_time > absl::ZeroDuration();
}

int64_t PresentPace(const Member& member) {
  const bool on_its_way = member.record.ordered_pace_milli() > 0 &&
                          member.record.step() <= member.record.ordered_from_step();
  return on_its_way ? member.record.ordered_pace_milli() : member.progress.pace_milli;
}

int64_t WantedPace(double ratio, double max_pace, int64_t present_milli) {
  const double present = static_cast<double>(present_milli) / kPaceOne;
  const bool fits =
      present_milli == kPaceOne
          ? ratio <= kEqual
          : ratio > kEqualAgain && ratio <= present * kTooSlow && present <= ratio * kTooFast;
  if (fits && present <= max_pace) return present_milli;
  if (ratio <= kEqual) return kPaceOne;
  const double wanted = std::min(ratio * kAbove, std::max(1.0, max_pace));
  return std::llround(wanted * 100) * (kPaceOne / 100);
}

}  // namespace

std::map<std::string, int64_t> NewPaces(const std::map<std::string, Member>& members,
                                        double max_pace) {
  absl::Duration fastest = absl::InfiniteDuration();
  for (const auto& [id, member] : members) {
    if (HasSpeed(member)) fastest = std::min(fastest, member.progress.inner_step_time);
  }
  std::map<std::string, int64_t> paces;
  for (const auto& [id, member] : members) {
    if (!HasSpeed(member)) continue;
    const double ratio =
        max_pace > 1 ? absl::FDivDuration(member.progress.inner_step_time, fastest) : 1;
    const int64_t present = PresentPace(member);
    const int64_t wanted = WantedPace(ratio, max_pace, present);
    if (wanted != present) paces[id] = wanted;
  }
  return paces;
}

int64_t PaceStart(int64_t largest_step, int64_t steps_between_syncs) {
  return (largest_step / steps_between_syncs + 1) * steps_between_syncs;
}

namespace {

// Longer than any run: 2^40 steps is the largest train.steps.
constexpr double kFar = 1e15;

bool Trains(const Member& member) {
  return member.record.state() == v1::Member::ACTIVE &&
         member.progress.step_time() > absl::ZeroDuration();
}

// Where the fastest member is `ahead` after its last heartbeat, if it never waits.
int64_t FarthestStep(const std::map<std::string, Member>& members, absl::Duration ahead) {
  int64_t farthest = 0;
  for (const auto& [id, member] : members) {
    if (!Trains(member)) continue;
    const double steps =
        std::min(kFar, std::ceil(absl::FDivDuration(ahead, member.progress.step_time())));
    farthest = std::max(farthest, member.record.step() + static_cast<int64_t>(steps) + 1);
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
    base -= per_step * static_cast<double>(member.record.step());
    rate += per_step;
  }
  if (rate <= 0) return std::nullopt;
  const double exact = (static_cast<double>(at_tokens) - base) / rate;
  const auto needed = static_cast<int64_t>(std::ceil(std::clamp(exact, 0.0, kFar)));
  if (needed > FarthestStep(members, lease)) return std::nullopt;
  return std::max(needed, FarthestStep(members, lease * 2 / 3));
}

}  // namespace causeway::server
