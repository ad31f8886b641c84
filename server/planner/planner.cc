#include "server/planner/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "server/planner/site_text.h"
#include "server/planner/slack.h"

namespace causeway::server {
namespace {

constexpr std::array<int, 5> kPeriods = {30, 50, 100, 200, 500};
constexpr std::array<int, 5> kFragments = {12, 25, 50, 100, 200};  // And H.
// Up to 10 costs training less than 0.2 % of the loss (arXiv 2501.18512, figure 6).
constexpr int kMostOverlap = 10;
// theta, momentum and published: in memory of a fragment whose round is merged, and of one whose
// snapshot is written; else at rest on the disk.
constexpr double kStateBytes = 12;
constexpr double kFragmentsInMemory = 2;
constexpr double kSpareMemory = 1.25;
// One TCP connection with Linux's default buffers at 100 ms (docs/links.md).
constexpr double kConnectionBits = 170e6 * 0.1;
constexpr int kFewestConnections = 4;
// The coordinator's link and merge are not planned to be busier than that.
constexpr double kFullest = 0.7;
// Share of the time that slack need not spare anybody.
constexpr double kWaited = 0.0005;
// Between two deaths of a coordinator that a plan's slack is tried with, in periods of H steps.
constexpr double kPeriodsBetweenDeaths = 3;

int TotalWorkers(const PlanRequest& request) {
  int workers = 0;
  for (const StarSite& site : request.sites) workers += site.count;
  return workers;
}

double FastestStep(const PlanRequest& request) {
  double seconds = kUnlimited;
  for (const StarSite& site : request.sites) {
    seconds = std::min(seconds, site.step_seconds / site.pace);
  }
  return seconds;
}

struct Candidate {
  int period;
  int fragments;
  int overlap;
  CodecBits up;
};

// As many as link, merges and memory would fill, of the one that is given.
int MachinesFor(const PlanRequest& request, const Candidate& candidate, double memory_bytes) {
  const CodecBits& up = candidate.up;
  const double seconds = candidate.period * FastestStep(request);
  const int workers = TotalWorkers(request);
  const double bits = std::max(up.bits_per_value, request.downlink.bits_per_value);
  const double link = workers * request.values * bits / seconds / request.coordinator_bit_per_s;
  const double merged_bytes =
      request.values * (24 + (workers * up.bits_per_value + request.downlink.bits_per_value) / 8);
  const double merge = merged_bytes / seconds / request.coordinator.merge_bytes_per_s;
  const double memory = kSpareMemory * memory_bytes / request.coordinator_memory_bytes;
  const double machines = std::ceil(std::max({link / kFullest, merge / kFullest, memory, 1.0}));
  return static_cast<int>(std::min(machines, 1e6));
}

std::vector<int> FragmentChoices(int period) {
  std::vector<int> choices;
  for (const int fragments : kFragments) {
    if (fragments < period) choices.push_back(fragments);
  }
  choices.push_back(period);
  return choices;
}

int Connections(const StarSite& site) {
  if (site.connections > 0) return site.connections;
  const double round_trip = 2 * site.one_way_seconds;
  const double rate = std::max(site.up_bit_per_s, site.down_bit_per_s);
  if (std::isinf(rate)) return kFewestConnections;
  const double needed = std::ceil(rate * round_trip / kConnectionBits);
  return static_cast<int>(std::clamp<double>(needed, kFewestConnections, 256));
}

// The setting's schedule over the request's links, or over a share of their rates.
StarSetting OverLinks(const PlanRequest& request, StarSetting setting, double rate_share = 1) {
  setting.sites = request.sites;
  for (StarSite& site : setting.sites) {
    site.connections = Connections(site);
    site.up_bit_per_s *= request.link_efficiency * rate_share;
    site.down_bit_per_s *= request.link_efficiency * rate_share;
  }
  setting.object_bits = 8 * kMeasuredObjectBytes;
  setting.coordinator = request.coordinator;
  setting.coordinator.in_bit_per_s = request.coordinator_bit_per_s;
  setting.coordinator.out_bit_per_s = request.coordinator_bit_per_s;
  setting.warm_up_steps = setting.steps_between_syncs;
  setting.steps = int64_t{4} * setting.steps_between_syncs;
  return setting;
}

StarSetting SettingOf(const PlanRequest& request, const Candidate& candidate,
                      double rate_share = 1) {
  StarSetting setting;
  setting.fragment_values.assign(static_cast<size_t>(candidate.fragments),
                                 request.values / candidate.fragments);
  setting.steps_between_syncs = candidate.period;
  setting.overlap_steps = candidate.overlap;
  setting.bits_up = candidate.up.bits_per_value;
  setting.bits_down = request.downlink.bits_per_value;
  return OverLinks(request, std::move(setting), rate_share);
}

// Whether bandwidth alone would let every site reach the target, however long the overlap.
bool BandwidthSuffices(const PlanRequest& request, int period, const CodecBits& up) {
  const double efficiency = request.link_efficiency * request.disturbances.mean_rate();
  return std::ranges::all_of(request.sites, [&](const StarSite& site) {
    const double step = site.step_seconds / site.pace;
    return ThroughputBound(request.values, up.bits_per_value, period, step) * request.target <=
               site.up_bit_per_s * efficiency &&
           ThroughputBound(request.values, request.downlink.bits_per_value, period, step) *
                   request.target <=
               site.down_bit_per_s * efficiency;
  });
}

std::string Binding(const PlanRequest& request, const Candidate& candidate,
                    const StarResult& result) {
  std::pair<double, std::string> busiest = {0, ""};
  for (const StarSiteResult& site : result.sites) {
    busiest = std::max(busiest, {site.up_busy, absl::StrCat("the uplink of ", site.name)});
    busiest = std::max(busiest, {site.down_busy, absl::StrCat("the downlink of ", site.name)});
  }
  busiest = std::max(busiest, {result.in_busy, "the coordinator's link in"});
  busiest = std::max(busiest, {result.out_busy, "the coordinator's link out"});
  busiest = std::max(busiest, {result.merge_busy, "the coordinator's merge"});
  std::string text = absl::StrFormat("%s, %.0f %% busy", busiest.second, 100 * busiest.first);
  const double overlap = candidate.overlap * FastestStep(request);
  if (result.utilization < request.target && busiest.first < 0.97) {
    const auto slowest = std::ranges::max_element(
        request.sites, {}, [](const StarSite& site) { return site.step_seconds / site.pace; });
    if (slowest->step_seconds / slowest->pace > 1.05 * FastestStep(request)) {
      return absl::StrFormat(
          "the steps of %s: the others wait for it (max_pace: %.1f would end that)", slowest->name,
          slowest->step_seconds / FastestStep(request) + 0.1);
    }
    absl::StrAppendFormat(&text, "; an exchange takes up to %.2f s, the overlap %.2f s",
                          result.longest_exchange_seconds, overlap);
  }
  return text;
}

// The coordinator's own death, again and again, at other steps each time.
Disturbances Deaths(double recovery_seconds, double period_seconds) {
  Disturbances deaths;
  deaths.outages.length.mean = recovery_seconds;
  deaths.outages.every = {
      RandomSeconds::Shape::kUniform,
      recovery_seconds + deaths.return_seconds + kPeriodsBetweenDeaths * period_seconds,
      period_seconds};
  return deaths;
}

absl::StatusOr<SlackPlan> PlanSlack(const PlanRequest& request, const Candidate& candidate,
                                    double recovery_seconds) {
  SlackPlan slack;
  slack.disturbances = request.disturbances;
  if (!slack.disturbances.any()) {
    slack.disturbances = Deaths(recovery_seconds, candidate.period * FastestStep(request));
  }
  StarSetting setting = SettingOf(request, candidate);
  setting.disturbances = slack.disturbances;
  setting.steps = DisturbedSteps(setting);
  ASSIGN_OR_RETURN(SlackStudy study, StudySlack(setting));
  double pace = 1;
  for (const StarSite& site : request.sites) pace = std::max(pace, site.pace);
  // A configuration with paces keeps max_pace steps between the last merge and the next send.
  const int kept = pace > 1 ? static_cast<int>(std::ceil(pace + 0.1)) : 1;
  slack.most_overlap_steps = std::max(candidate.overlap, candidate.period - kept);
  slack.needed_steps = SlackForWaits(
      study.most.late_steps,
      kWaited * TotalWorkers(request) * static_cast<double>(setting.steps - setting.warm_up_steps));
  slack.max_overlap_steps =
      std::min(candidate.overlap + slack.needed_steps, slack.most_overlap_steps);
  setting.max_overlap_steps = slack.max_overlap_steps;
  ASSIGN_OR_RETURN(slack.with, SimulateStar(setting));
  slack.without = std::move(study.without);
  slack.late_steps = std::move(study.most.late_steps);
  return slack;
}

absl::StatusOr<Plan> Describe(const PlanRequest& request, const Candidate& candidate,
                              const StarResult& result) {
  Plan plan;
  plan.steps_between_syncs = candidate.period;
  plan.fragments = candidate.fragments;
  plan.overlap_steps = candidate.overlap;
  plan.up = candidate.up;
  plan.down = request.downlink;
  plan.expected = result;
  plan.reaches_target = result.utilization >= request.target;
  plan.binding = Binding(request, candidate, result);
  const double up = candidate.up.bits_per_value;
  const double down = request.downlink.bits_per_value;
  for (const StarSite& site : request.sites) {
    plan.needed_bit_per_s.push_back(ThroughputBound(
        request.values, std::max(up, down), candidate.period, site.step_seconds / site.pace));
    plan.connections.push_back(Connections(site));
  }
  const int workers = TotalWorkers(request);
  const double snapshot_rounds = request.snapshot_every_rounds;
  const double seconds = candidate.period * result.seconds_per_step;
  // The last two answers are held, too.
  plan.coordinator_memory_bytes = request.values / candidate.fragments *
                                      (kFragmentsInMemory * kStateBytes + 2 * down / 8) +
                                  result.peak_held_bytes;
  plan.machines = MachinesFor(request, candidate, plan.coordinator_memory_bytes);
  plan.coordinator_bit_per_s = workers * request.values * std::max(up, down) / seconds;
  plan.disk_bytes_per_s =
      request.values *
      ((workers * up + down) / 8 + kStateBytes + kStateBytes / snapshot_rounds) / seconds;
  // What rests, the last two snapshots of every fragment, and what came since the older one
  // (docs/formats.md).
  const double round_bytes = (workers * up + down) / 8;  // Per value.
  plan.disk_bytes =
      request.values * (kStateBytes + 2 * (kStateBytes + snapshot_rounds * round_bytes));
  plan.recovery_seconds =
      request.values *
      ((kStateBytes + snapshot_rounds * round_bytes) / request.disk_bytes_per_s +
       snapshot_rounds * (kMergedStateBytes + round_bytes) / request.coordinator.merge_bytes_per_s);
  plan.worker_state_bytes = request.values * 8;
  ASSIGN_OR_RETURN(plan.slack, PlanSlack(request, candidate, plan.recovery_seconds));
  return plan;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanRequest& request) {
  if (!(request.target > 0 && request.target < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the utilization asked for must be above 0 and below 1; it is ", request.target));
  }
  if (request.uplinks.empty()) return absl::InvalidArgumentError("no codec is allowed");
  if (!(request.link_efficiency > 0 && request.link_efficiency <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the links' efficiency must be above 0 and at most 1; it is ", request.link_efficiency));
  }
  if (!(request.disk_bytes_per_s > 0)) {
    return absl::InvalidArgumentError("a disk's rate must be above 0");
  }
  if (request.snapshot_every_rounds < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--snapshot_every_rounds must be 1 or more; it is ", request.snapshot_every_rounds));
  }
  if (!(request.values >= 1 && request.values <= 1e15)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model has 1 to 1e15 parameters, not ", request.values));
  }
  RETURN_IF_ERROR(CheckDisturbances(request.disturbances));
  std::optional<std::pair<Candidate, StarResult>> best;
  const auto try_out = [&](const Candidate& candidate) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const StarResult result,
                     SimulateStar(SettingOf(request, candidate, request.disturbances.mean_rate())));
    if (!best.has_value() || result.utilization > best->second.utilization) {
      best = {candidate, result};
    }
    return result.utilization >= request.target;
  };
  for (const int period : kPeriods) {
    for (const CodecBits& up : request.uplinks) {
      const bool last = period == kPeriods.back();
      if (!BandwidthSuffices(request, period, up) && !last) continue;
      // The smallest tau first: it is what training would rather do without.
      for (int overlap = 1; overlap <= kMostOverlap; ++overlap) {
        for (const int fragments : FragmentChoices(period)) {
          const Candidate candidate = {period, fragments, overlap, up};
          ASSIGN_OR_RETURN(const bool enough, try_out(candidate));
          if (enough) return Describe(request, candidate, best->second);
        }
      }
    }
  }
  return Describe(request, best->first, best->second);
}

absl::StatusOr<StarResult> ExpectOf(const PlanRequest& request, StarSetting schedule) {
  schedule = OverLinks(request, std::move(schedule));
  schedule.disturbances = request.disturbances;
  if (schedule.disturbances.any()) schedule.steps = DisturbedSteps(schedule);
  return SimulateStar(schedule);
}

}  // namespace causeway::server
