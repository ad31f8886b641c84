#include "server/planner/slack.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

constexpr double kInterruptions = 50;
constexpr int64_t kLeastPeriods = 20;
constexpr double kMostSteps = 1e6;        // All simulated workers together.
constexpr double kMostRateSeconds = 2e5;  // All workers together, one draw each.

}  // namespace

absl::StatusOr<SlackStudy> StudySlack(const StarSetting& setting) {
  SlackStudy study;
  StarSetting other = setting;
  other.max_overlap_steps = 0;
  ASSIGN_OR_RETURN(study.without, SimulateStar(other));
  other.max_overlap_steps = setting.steps_between_syncs - 1;
  ASSIGN_OR_RETURN(study.most, SimulateStar(other));
  return study;
}

int SlackFor(std::span<const int> late_steps, double share) {
  if (late_steps.empty() || share <= 0) return 0;
  const auto covered =
      static_cast<size_t>(std::ceil(share * static_cast<double>(late_steps.size()) - 1e-9));
  return late_steps[std::clamp<size_t>(covered, 1, late_steps.size()) - 1];
}

int SlackForWaits(std::span<const int> late_steps, double steps) {
  int slack = late_steps.empty() ? 0 : late_steps.back();
  double waited = 0;
  // With one step less every longer one of them is waited for one step more.
  for (auto longer = late_steps.rbegin(); slack > 0; --slack) {
    while (longer != late_steps.rend() && *longer >= slack) ++longer;
    waited += static_cast<double>(longer - late_steps.rbegin());
    if (waited > steps) break;
  }
  return slack;
}

int64_t DisturbedSteps(const StarSetting& setting) {
  const Disturbances& disturbances = setting.disturbances;
  double workers = 0;
  double step_seconds = kUnlimited;
  for (const StarSite& site : setting.sites) {
    workers += site.count;
    step_seconds = std::min(step_seconds, site.step_seconds / site.pace);
  }
  double seconds = 0;
  const auto cover = [&](const Interruptions& what, double things) {
    if (!what.any()) return;
    seconds = std::max(seconds, what.once_at >= 0 ? what.once_at + what.length.mean
                                                  : kInterruptions * what.every.mean / things);
  };
  cover(disturbances.outages, 1);
  cover(disturbances.silences, workers);
  cover(disturbances.stragglers, workers);
  double most = kMostSteps / (disturbances.tells_workers_apart() ? workers : 1);
  if (disturbances.jitters()) most = std::min(most, kMostRateSeconds / workers / step_seconds);
  const double steps = std::min(seconds / step_seconds, most);
  return kLeastPeriods * setting.steps_between_syncs + static_cast<int64_t>(steps);
}

}  // namespace causeway::server
