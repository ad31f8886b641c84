#include "server/planner/upper_tiers.h"

#include <algorithm>
#include <cstddef>

namespace causeway::server {

UpperTiers::UpperTiers(const StarSetting& setting)
    : setting_(setting), tiers_(setting.tiers.size()) {}

double UpperTiers::Queue::Take(double ready, double seconds, bool counting) {
  free = std::max(free, ready) + seconds;
  if (counting) busy += seconds;
  return free;
}

double UpperTiers::Pass(double ready, double values, bool counting) {
  const StarCoordinator& coordinator = setting_.coordinator;
  const double up_bits = values * setting_.bits_up;
  const double down_bits = values * setting_.bits_down;
  double time = ready;
  for (size_t k = 0; k < tiers_.size(); ++k) {
    const StarTier& tier = setting_.tiers[k];
    // All below send at the same time and share the coordinator's link.
    const double rate = std::min(tier.up_bit_per_s, coordinator.in_bit_per_s / tier.count);
    time = tiers_[k].up.Take(time, up_bits / rate, counting) + tier.one_way_seconds;
    if (counting) tiers_[k].in_seconds += tier.count * up_bits / coordinator.in_bit_per_s;
    const double bytes_per_value =
        kMergedStateBytes + (setting_.bits_up * tier.count + setting_.bits_down) / 8;
    time = tiers_[k].merge.Take(time, values * bytes_per_value / coordinator.merge_bytes_per_s,
                                counting) +
           coordinator.commit_seconds;
  }
  for (size_t k = tiers_.size(); k-- > 0;) {
    const StarTier& tier = setting_.tiers[k];
    const double rate = std::min(tier.down_bit_per_s, coordinator.out_bit_per_s / tier.count);
    time = tiers_[k].down.Take(time, down_bits / rate, counting) + tier.one_way_seconds +
           coordinator.commit_seconds;
    if (counting) tiers_[k].out_seconds += tier.count * down_bits / coordinator.out_bit_per_s;
  }
  return time;
}

std::vector<StarTierResult> UpperTiers::Results(double seconds) const {
  std::vector<StarTierResult> results;
  for (const Tier& tier : tiers_) {
    results.push_back({.up_busy = tier.up.busy / seconds,
                       .down_busy = tier.down.busy / seconds,
                       .in_busy = tier.in_seconds / seconds,
                       .out_busy = tier.out_seconds / seconds,
                       .merge_busy = tier.merge.busy / seconds});
  }
  return results;
}

}  // namespace causeway::server
