#include "server/ctl/simulate_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/planner/disturbance_text.h"
#include "server/planner/site_text.h"
#include "server/status/status_text.h"

namespace causeway::server {
namespace {

using nlohmann::json;

std::string Percent(double share) {
  return absl::StrFormat("%.*f %%", share > 0.995 || share < 0.1 ? 2 : 1, 100 * share);
}

// JSON has no infinity: an unlimited rate is null.
json RateJson(double bit_per_s) { return std::isinf(bit_per_s) ? json(nullptr) : json(bit_per_s); }

double Values(const StarSetting& setting) {
  double values = 0;
  for (const double fragment : setting.fragment_values) values += fragment;
  return values;
}

constexpr std::array<double, 4> kShares = {0.5, 0.9, 0.99, 1};

// When answers are late, and what slack would keep them from being waited for.
std::string LateText(const std::vector<int>& late_steps, int slack_of_period) {
  if (late_steps.empty()) return "no answer is late\n";
  std::string text = absl::StrFormat(
      "a worker's answers are late %d times; slack that spares it the wait:", late_steps.size());
  for (const double share : kShares) {
    absl::StrAppendFormat(&text, "%s %.0f %% %d%s", share == kShares.front() ? "" : ",",
                          100 * share, SlackFor(late_steps, share),
                          share == kShares.front() ? " steps" : "");
  }
  absl::StrAppendFormat(&text, "; H allows %d\n", slack_of_period);
  return text;
}

json LateJson(const std::vector<int>& late_steps) {
  json shares = json::object();
  for (const double share : kShares) {
    shares[absl::StrCat(share)] = SlackFor(late_steps, share);
  }
  return {{"times", late_steps.size()}, {"slack_steps", shares}};
}

std::string SlackText(const PlanRequest& request, const Plan& plan) {
  const SlackPlan& slack = plan.slack;
  const bool asked = request.disturbances.any();
  std::string text;
  if (asked) {
    absl::StrAppendFormat(
        &text, "amiss: %s\n%s", DisturbancesText(slack.disturbances),
        LateText(slack.late_steps, slack.most_overlap_steps - plan.overlap_steps));
  }
  if (slack.max_overlap_steps == plan.overlap_steps) {
    return absl::StrCat(text, "slack: none is needed", asked ? "" : " for a coordinator that dies",
                        "\n");
  }
  absl::StrAppendFormat(&text,
                        "slack: in place of mixing: 0.5 take mixing: 0 keep_in_flight: 1 "
                        "max_overlap_steps: %d\n",
                        slack.max_overlap_steps);
  if (asked) {
    absl::StrAppendFormat(&text, "a utilization of %s, without it %s",
                          Percent(slack.with.utilization), Percent(slack.without.utilization));
  } else {
    absl::StrAppendFormat(
        &text, "spares workers the wait for a coordinator that dies and is back after %.3g s",
        slack.disturbances.outages.length.mean + slack.disturbances.return_seconds);
  }
  if (slack.needed_steps > slack.max_overlap_steps - plan.overlap_steps) {
    absl::StrAppendFormat(&text, ", as far as H allows; all the way takes an H above %d",
                          plan.overlap_steps + slack.needed_steps);
  }
  return absl::StrCat(
      text, "\n(what late merges do to quality is not measured: try it on a small model first)\n");
}

// Bytes of a training, of one worker and of the coordinator.
struct Moved {
  int workers = 0;
  double worker_up = 0;
  double worker_down = 0;
  double coordinator_out = 0;
  double disk = 0;
};

Moved MovedIn(const PlanRequest& request, const Plan& plan, double days) {
  const double seconds = days * 86400;
  const double steps = seconds / plan.expected.seconds_per_step;
  Moved moved = {.worker_up = plan.expected.up_bytes_per_step * steps,
                 .worker_down = plan.expected.down_bytes_per_step * steps,
                 .disk = plan.disk_bytes_per_s * seconds};
  for (const StarSite& site : request.sites) moved.workers += site.count;
  moved.coordinator_out = moved.worker_down * moved.workers;
  return moved;
}

}  // namespace

std::string PaperText(const PaperComparison& bandwidths, const std::vector<PaperHours>& hours,
                      const std::vector<OwnRow>& own) {
  std::string text =
      "Gbit/s for a compute utilization of 50, 80, 90, 95 and 99 %: the paper's, and ours in "
      "brackets\nwhere its simulator gives another one here.\n\n";
  std::vector<std::vector<std::string>> rows = {
      {"MODEL, METHOD", "50 %", "80 %", "90 %", "95 %", "99 %", ""}};
  for (const PaperRow& row : bandwidths.rows) {
    std::vector<std::string> cells = {absl::StrCat(row.model, " ", row.method)};
    for (size_t j = 0; j < kPaperTargets.size(); ++j) {
      cells.push_back(row.grid_steps[j] == 0
                          ? row.paper[j]
                          : absl::StrCat(row.paper[j], " (", PaperPrinted(row.ours[j]), ")"));
    }
    cells.emplace_back();
    rows.push_back(cells);
  }
  absl::StrAppend(&text, FormatTable(rows));
  absl::StrAppendFormat(
      &text, "\n%d of %d cells are the paper's own grid point, %d are within one step.\n",
      bandwidths.cells_exact, bandwidths.cells, bandwidths.cells_within_one);
  absl::StrAppend(&text, "\nHours of training, 1B parameters:\n\n");
  rows = {{"METHOD", "TOKENS", "UNLIMITED", "AT 1 GBIT/S", "OURS", "OFF BY"}};
  for (const PaperHours& row : hours) {
    rows.push_back({row.method, absl::StrFormat("%.0fB", row.tokens_billions),
                    absl::StrFormat("%.4g", row.unlimited_hours),
                    absl::StrFormat("%.4g", row.paper_hours),
                    absl::StrFormat("%.4g", row.our_hours),
                    absl::StrFormat("%+.1f %%", 100 * (row.our_hours / row.paper_hours - 1))});
  }
  absl::StrAppend(&text, FormatTable(rows));
  const StarSetting setting = OwnSetting(1, 1);
  absl::StrAppendFormat(&text,
                        "\nGbit/s for 99 %% with Causeway's schedule and topology: %d sites and a "
                        "coordinator, H = %d,\n"
                        "%d fragments, tau %d, %.4g bits per value each way, %.0f ms one way, %s "
                        "at the coordinator:\n\n",
                        setting.sites.front().count, setting.steps_between_syncs,
                        setting.fragment_values.size(), setting.overlap_steps, setting.bits_up,
                        1000 * setting.sites.front().one_way_seconds,
                        RateText(setting.coordinator.in_bit_per_s));
  rows = {{"MODEL", "PAPER", "BOUND", "CAUSEWAY", "TIMES THE BOUND", "  EXCHANGE"}};
  for (const OwnRow& row : own) {
    rows.push_back({row.model, absl::StrFormat("%.1f", row.paper_bit_per_s / 1e9),
                    absl::StrFormat("%.2f", row.bound_bit_per_s / 1e9),
                    absl::StrFormat("%.3f", row.needed_bit_per_s / 1e9),
                    absl::StrFormat("%.2f", row.needed_bit_per_s / row.bound_bit_per_s),
                    absl::StrFormat("  %.2f s", row.exchange_seconds)});
  }
  absl::StrAppend(&text, FormatTable(rows),
                  "\nBound: 4 bits per parameter over H steps, the least for any overlap.\n");
  return text;
}

json PaperJson(const PaperComparison& bandwidths, const std::vector<PaperHours>& hours,
               const std::vector<OwnRow>& own) {
  json rows = json::array();
  for (const PaperRow& row : bandwidths.rows) {
    rows.push_back({{"model", row.model},
                    {"method", row.method},
                    {"paper_gbit_per_s", row.paper},
                    {"gbit_per_s", row.ours},
                    {"grid_steps", row.grid_steps}});
  }
  json hour_rows = json::array();
  for (const PaperHours& row : hours) {
    hour_rows.push_back({{"method", row.method},
                         {"tokens", row.tokens_billions * 1e9},
                         {"unlimited_hours", row.unlimited_hours},
                         {"paper_hours_at_1_gbit", row.paper_hours},
                         {"hours_at_1_gbit", row.our_hours}});
  }
  json own_rows = json::array();
  for (const OwnRow& row : own) {
    own_rows.push_back({{"model", row.model},
                        {"paper_bit_per_s", row.paper_bit_per_s},
                        {"bound_bit_per_s", row.bound_bit_per_s},
                        {"needed_bit_per_s", row.needed_bit_per_s},
                        {"times_bound", row.needed_bit_per_s / row.bound_bit_per_s},
                        {"exchange_seconds", row.exchange_seconds}});
  }
  return {{"targets", kPaperTargets},
          {"cells", bandwidths.cells},
          {"cells_exact", bandwidths.cells_exact},
          {"cells_within_one", bandwidths.cells_within_one},
          {"rows", rows},
          {"hours", hour_rows},
          {"causeway", own_rows}};
}

std::string StarText(const StarSetting& setting, const StarResult& result,
                     const std::optional<SlackStudy>& slack) {
  std::string text = absl::StrFormat(
      "utilization %s, goodput %s; a step of the schedule takes %.4g s\n",
      Percent(result.utilization), Percent(result.goodput), result.seconds_per_step);
  absl::StrAppendFormat(
      &text, "an exchange takes %.3g s, at most %.3g s; the overlap is %d steps%s\n",
      result.exchange_seconds, result.longest_exchange_seconds, setting.overlap_steps,
      setting.max_overlap_steps > setting.overlap_steps
          ? absl::StrCat(", at most ", setting.max_overlap_steps)
          : "");
  absl::StrAppendFormat(&text, "%d rounds, %d of them without somebody; %d deaths\n\n",
                        result.rounds, result.rounds_without_somebody, result.deaths);
  std::vector<std::vector<std::string>> rows = {
      {"SITE", "WORKERS", "UTILIZATION", "GOODPUT", "LINK UP", "LINK DOWN"}};
  for (size_t i = 0; i < result.sites.size(); ++i) {
    const StarSiteResult& site = result.sites[i];
    rows.push_back({site.name, absl::StrCat(setting.sites[i].count), Percent(site.utilization),
                    Percent(site.goodput), Percent(site.up_busy), Percent(site.down_busy)});
  }
  absl::StrAppend(&text, FormatTable(rows));
  absl::StrAppendFormat(
      &text, "coordinator: link in %s, out %s, merge %s busy; at most %s of deltas held\n",
      Percent(result.in_busy), Percent(result.out_busy), Percent(result.merge_busy),
      ShortBytes(result.peak_held_bytes));
  int64_t coordinators = 1;
  for (size_t i = 0; i < result.tiers.size(); ++i) {
    const StarTier& tier = setting.tiers[i];
    const StarTierResult& outcome = result.tiers[i];
    coordinators *= tier.count;
    absl::StrAppendFormat(
        &text,
        "tier %d: %d coordinators each under one, their links up %s, down %s; its link in %s, out "
        "%s, merge %s busy\n",
        i + 1, tier.count, Percent(outcome.up_busy), Percent(outcome.down_busy),
        Percent(outcome.in_busy), Percent(outcome.out_busy), Percent(outcome.merge_busy));
  }
  if (!result.tiers.empty()) {
    int64_t workers = 0;
    for (const StarSite& site : setting.sites) workers += site.count;
    absl::StrAppendFormat(&text, "%d regions like this one, %d workers\n", coordinators,
                          coordinators * workers);
  }
  absl::StrAppendFormat(&text, "a worker moves %s up and %s down per step\n",
                        ShortBytes(result.up_bytes_per_step),
                        ShortBytes(result.down_bytes_per_step));
  if (!slack.has_value()) return text;
  if (setting.disturbances.any()) {
    absl::StrAppend(&text, "\namiss: ", DisturbancesText(setting.disturbances), "\n");
  }
  if (setting.max_overlap_steps > setting.overlap_steps) {
    absl::StrAppendFormat(&text, "without slack: utilization %s, goodput %s\n",
                          Percent(slack->without.utilization), Percent(slack->without.goodput));
  }
  if (setting.max_overlap_steps < setting.steps_between_syncs - 1) {
    absl::StrAppendFormat(&text, "with all that H allows: utilization %s, goodput %s\n",
                          Percent(slack->most.utilization), Percent(slack->most.goodput));
  }
  absl::StrAppend(&text, LateText(slack->most.late_steps,
                                  setting.steps_between_syncs - 1 - setting.overlap_steps));
  return text;
}

json StarJson(const StarSetting& setting, const StarResult& result,
              const std::optional<SlackStudy>& slack) {
  json sites = json::array();
  for (size_t i = 0; i < result.sites.size(); ++i) {
    const StarSite& site = setting.sites[i];
    const StarSiteResult& outcome = result.sites[i];
    sites.push_back({{"name", site.name},
                     {"workers", site.count},
                     {"step_seconds", site.step_seconds},
                     {"pace", site.pace},
                     {"up_bit_per_s", RateJson(site.up_bit_per_s)},
                     {"down_bit_per_s", RateJson(site.down_bit_per_s)},
                     {"one_way_seconds", site.one_way_seconds},
                     {"utilization", outcome.utilization},
                     {"goodput", outcome.goodput},
                     {"up_busy", outcome.up_busy},
                     {"down_busy", outcome.down_busy}});
  }
  json tiers = json::array();
  for (size_t i = 0; i < result.tiers.size(); ++i) {
    const StarTier& tier = setting.tiers[i];
    const StarTierResult& outcome = result.tiers[i];
    tiers.push_back({{"coordinators", tier.count},
                     {"up_bit_per_s", RateJson(tier.up_bit_per_s)},
                     {"down_bit_per_s", RateJson(tier.down_bit_per_s)},
                     {"one_way_seconds", tier.one_way_seconds},
                     {"up_busy", outcome.up_busy},
                     {"down_busy", outcome.down_busy},
                     {"in_busy", outcome.in_busy},
                     {"out_busy", outcome.out_busy},
                     {"merge_busy", outcome.merge_busy}});
  }
  json without = nullptr;
  json most = nullptr;
  json late = nullptr;
  if (slack.has_value()) {
    without = {{"utilization", slack->without.utilization}, {"goodput", slack->without.goodput}};
    most = {{"utilization", slack->most.utilization}, {"goodput", slack->most.goodput}};
    late = LateJson(slack->most.late_steps);
  }
  return {{"params", Values(setting)},
          {"fragments", setting.fragment_values.size()},
          {"steps_between_syncs", setting.steps_between_syncs},
          {"overlap_steps", setting.overlap_steps},
          {"max_overlap_steps", std::max(setting.overlap_steps, setting.max_overlap_steps)},
          {"amiss", DisturbancesText(setting.disturbances)},
          {"without_slack", without},
          {"with_most_slack", most},
          {"late", late},
          {"bits_up", setting.bits_up},
          {"bits_down", setting.bits_down},
          {"seed", setting.seed},
          {"sites", sites},
          {"tiers", tiers},
          {"utilization", result.utilization},
          {"goodput", result.goodput},
          {"seconds", result.seconds},
          {"seconds_per_step", result.seconds_per_step},
          {"exchange_seconds", result.exchange_seconds},
          {"longest_exchange_seconds", result.longest_exchange_seconds},
          {"coordinator_in_busy", result.in_busy},
          {"coordinator_out_busy", result.out_busy},
          {"coordinator_merge_busy", result.merge_busy},
          {"up_bytes_per_step", result.up_bytes_per_step},
          {"down_bytes_per_step", result.down_bytes_per_step},
          {"peak_held_bytes", result.peak_held_bytes},
          {"rounds", result.rounds},
          {"rounds_without_somebody", result.rounds_without_somebody},
          {"deaths", result.deaths}};
}

std::string SweepText(const std::vector<SweepPoint>& points) {
  std::vector<std::vector<std::string>> rows = {{"LINK", "UTILIZATION", "EXCHANGE", "LINK UP"}};
  for (const SweepPoint& point : points) {
    rows.push_back({RateText(point.bit_per_s), Percent(point.result.utilization),
                    absl::StrFormat("%.3g s", point.result.exchange_seconds),
                    Percent(point.result.sites.front().up_busy)});
  }
  return FormatTable(rows);
}

json SweepJson(const std::vector<SweepPoint>& points) {
  json rows = json::array();
  for (const SweepPoint& point : points) {
    rows.push_back({{"bit_per_s", point.bit_per_s},
                    {"utilization", point.result.utilization},
                    {"goodput", point.result.goodput},
                    {"exchange_seconds", point.result.exchange_seconds}});
  }
  return {{"points", rows}};
}

std::string PlanText(const PlanRequest& request, const Plan& plan,
                     const std::optional<ConfiguredRun>& configured, const CostRequest& cost) {
  std::string text = absl::StrFormat(
      "%s: expect a utilization of %s%s\n\n", ShortNumber(request.values) + " parameters",
      Percent(plan.expected.utilization),
      plan.reaches_target ? ""
                          : absl::StrCat(", short of the ", Percent(request.target), " asked for"));
  absl::StrAppendFormat(&text,
                        "sync { pattern: BALANCED fragments: %d steps_between_syncs: %d "
                        "overlap_steps: %d\n       mixing: 0.5 codec_up: %s codec_down: %s%s }\n",
                        plan.fragments, plan.steps_between_syncs, plan.overlap_steps,
                        v1::Codec_Name(plan.up.codec), v1::Codec_Name(plan.down.codec),
                        plan.up.codec == v1::LM2 ? " error_feedback: true" : "");
  double pace = 1;
  for (const StarSite& site : request.sites) pace = std::max(pace, site.pace);
  if (pace > 1) absl::StrAppendFormat(&text, "membership { max_pace: %.2g }\n", pace + 0.1);
  absl::StrAppendFormat(&text, "\nwhat binds: %s\n", plan.binding);
  absl::StrAppendFormat(&text, "an exchange takes up to %.3g s; tau gives it %.3g s\n\n",
                        plan.expected.longest_exchange_seconds,
                        plan.overlap_steps * plan.expected.seconds_per_step);
  std::vector<std::vector<std::string>> rows = {
      {"SITE", "UTILIZATION", "NEEDS", "PAYLOAD", "LINK UP", "LINK DOWN", "CONNECTIONS"}};
  for (size_t i = 0; i < request.sites.size(); ++i) {
    const StarSite& site = request.sites[i];
    const StarSiteResult& expected = plan.expected.sites[i];
    rows.push_back(
        {site.name, Percent(expected.utilization), RateText(plan.needed_bit_per_s[i]),
         RateText(std::min(site.up_bit_per_s, site.down_bit_per_s) * request.link_efficiency),
         Percent(expected.up_busy), Percent(expected.down_busy),
         absl::StrCat(plan.connections[i])});
  }
  absl::StrAppend(&text, FormatTable(rows));
  absl::StrAppendFormat(
      &text, "\ncoordinator: %s of memory, %s each way, %s/s to the disk; merge %s busy\n",
      ShortBytes(plan.coordinator_memory_bytes), RateText(plan.coordinator_bit_per_s),
      ShortBytes(plan.disk_bytes_per_s), Percent(plan.expected.merge_busy));
  if (plan.machines > 1) {
    absl::StrAppendFormat(&text,
                          "that is what %d of the machines that are given here would have: take a "
                          "larger one, or regions, which share the traffic (docs/scale.md)\n",
                          plan.machines);
  }
  absl::StrAppendFormat(&text, "a worker: %s beside what training takes\n",
                        ShortBytes(plan.worker_state_bytes));
  absl::StrAppendFormat(
      &text,
      "the coordinator's disk holds at most %s; after a death it serves again within %.3g s\n",
      ShortBytes(plan.disk_bytes), plan.recovery_seconds);
  absl::StrAppend(&text, SlackText(request, plan));
  if (cost.days > 0) {
    const Moved moved = MovedIn(request, plan, cost.days);
    absl::StrAppendFormat(
        &text,
        "\nin %.4g days a worker sends %s and receives %s;\nthe coordinator sends %s and writes %s "
        "to its disk\n",
        cost.days, ShortBytes(moved.worker_up), ShortBytes(moved.worker_down),
        ShortBytes(moved.coordinator_out), ShortBytes(moved.disk));
    if (cost.egress_per_tb > 0) {
      absl::StrAppendFormat(
          &text, "at %.4g per TB sent: %.0f for a worker, %.0f for the coordinator, %.0f in all\n",
          cost.egress_per_tb, moved.worker_up * cost.egress_per_tb / 1e12,
          moved.coordinator_out * cost.egress_per_tb / 1e12,
          (moved.worker_up * moved.workers + moved.coordinator_out) * cost.egress_per_tb / 1e12);
    }
  }
  if (configured.has_value()) {
    const StarResult& expected = configured->expected;
    absl::StrAppendFormat(
        &text,
        "\nthe configuration as it is (%d fragments, H %d, tau %s): a utilization of %s;\nan "
        "exchange takes up to %.3g s, tau gives it %.3g s\n",
        configured->schedule.fragment_values.size(), configured->schedule.steps_between_syncs,
        configured->schedule.max_overlap_steps > configured->schedule.overlap_steps
            ? absl::StrCat(configured->schedule.overlap_steps, " to ",
                           configured->schedule.max_overlap_steps)
            : absl::StrCat(configured->schedule.overlap_steps),
        Percent(expected.utilization), expected.longest_exchange_seconds,
        std::max(configured->schedule.overlap_steps, configured->schedule.max_overlap_steps) *
            expected.seconds_per_step);
  }
  return text;
}

json PlanJson(const PlanRequest& request, const Plan& plan,
              const std::optional<ConfiguredRun>& configured, const CostRequest& cost) {
  json sites = json::array();
  for (size_t i = 0; i < request.sites.size(); ++i) {
    const StarSiteResult& expected = plan.expected.sites[i];
    sites.push_back({{"name", request.sites[i].name},
                     {"workers", request.sites[i].count},
                     {"pace", request.sites[i].pace},
                     {"utilization", expected.utilization},
                     {"needed_bit_per_s", plan.needed_bit_per_s[i]},
                     {"up_busy", expected.up_busy},
                     {"down_busy", expected.down_busy},
                     {"connections", plan.connections[i]}});
  }
  json costs = nullptr;
  if (cost.days > 0) {
    const Moved moved = MovedIn(request, plan, cost.days);
    costs = {{"days", cost.days},
             {"worker_up_bytes", moved.worker_up},
             {"worker_down_bytes", moved.worker_down},
             {"coordinator_out_bytes", moved.coordinator_out},
             {"disk_bytes_written", moved.disk},
             {"egress_per_tb", cost.egress_per_tb},
             {"egress", (moved.worker_up * moved.workers + moved.coordinator_out) *
                            cost.egress_per_tb / 1e12}};
  }
  json as_configured = nullptr;
  if (configured.has_value()) {
    as_configured = {{"fragments", configured->schedule.fragment_values.size()},
                     {"steps_between_syncs", configured->schedule.steps_between_syncs},
                     {"overlap_steps", configured->schedule.overlap_steps},
                     {"max_overlap_steps", std::max(configured->schedule.overlap_steps,
                                                    configured->schedule.max_overlap_steps)},
                     {"utilization", configured->expected.utilization},
                     {"exchange_seconds", configured->expected.exchange_seconds},
                     {"longest_exchange_seconds", configured->expected.longest_exchange_seconds}};
  }
  return {{"params", request.values},
          {"configured", as_configured},
          {"target", request.target},
          {"reaches_target", plan.reaches_target},
          {"utilization", plan.expected.utilization},
          {"binding", plan.binding},
          {"sync",
           {{"pattern", "BALANCED"},
            {"fragments", plan.fragments},
            {"steps_between_syncs", plan.steps_between_syncs},
            {"overlap_steps", plan.overlap_steps},
            {"codec_up", v1::Codec_Name(plan.up.codec)},
            {"codec_down", v1::Codec_Name(plan.down.codec)}}},
          {"exchange_seconds", plan.expected.exchange_seconds},
          {"longest_exchange_seconds", plan.expected.longest_exchange_seconds},
          {"sites", sites},
          {"machines", plan.machines},
          {"coordinator_memory_bytes", plan.coordinator_memory_bytes},
          {"coordinator_bit_per_s", plan.coordinator_bit_per_s},
          {"merge_busy", plan.expected.merge_busy},
          {"disk_bytes_per_s", plan.disk_bytes_per_s},
          {"disk_bytes", plan.disk_bytes},
          {"recovery_seconds", plan.recovery_seconds},
          {"cost", costs},
          {"worker_state_bytes", plan.worker_state_bytes},
          {"slack",
           {{"amiss", DisturbancesText(plan.slack.disturbances)},
            {"asked_for", request.disturbances.any()},
            {"max_overlap_steps", plan.slack.max_overlap_steps},
            {"most_overlap_steps", plan.slack.most_overlap_steps},
            {"needed_slack_steps", plan.slack.needed_steps},
            {"late", LateJson(plan.slack.late_steps)},
            {"utilization", plan.slack.with.utilization},
            {"utilization_without", plan.slack.without.utilization}}}};
}

}  // namespace causeway::server
