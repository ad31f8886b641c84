#include "server/ctl/simulate_command.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/params/fragment_plan.h"
#include "server/ctl/config_command.h"
#include "server/ctl/simulate_report.h"
#include "server/planner/disturbance_text.h"
#include "server/planner/disturbances.h"
#include "server/planner/need.h"
#include "server/planner/paper_tables.h"
#include "server/planner/planner.h"
#include "server/planner/site_text.h"
#include "server/planner/slack.h"
#include "server/planner/star_model.h"

ABSL_DECLARE_FLAG(std::string, preset);
ABSL_FLAG(std::string, table, "", "paper: the paper's tables, beside what the simulator says");
ABSL_FLAG(double, params, 0, "N: parameters of the model, as 10e9");
ABSL_FLAG(std::string, config, "", "FILE: a run's configuration in place of --params");
ABSL_FLAG(double, step_ms, 0, "N: of an inner step");
ABSL_FLAG(std::string, links, "", "RATE,...: of the sites, as 1gbit,3x400mbit@1600ms");
ABSL_FLAG(double, rtt_ms, 100, "round trip between a site and the coordinator");
ABSL_FLAG(double, object_bytes, 0,
          "of a fragment on the wire beside its values; 2500 is what was measured");
ABSL_FLAG(int, connections, 0, "of a worker, whose last chunks come late; 0: they do not");
ABSL_FLAG(double, link_efficiency, 0,
          "N: payload's share of a link; else 1 to simulate, 0.85 to plan");
ABSL_FLAG(int, fragments, 50, "of equal size");
ABSL_FLAG(int, steps_between_syncs, 100, "H");
ABSL_FLAG(int, overlap_steps, 5, "tau");
ABSL_FLAG(int, max_overlap_steps, 0, "N: tau_max, beside the same run without it");
ABSL_FLAG(std::string, outages, "",
          "LENGTH/EVERY: of the coordinator, as 20s/exp:1h or 5s..60s/2h; 20s@2m: once");
ABSL_FLAG(double, return_s, causeway::server::kMeasuredReturnSeconds,
          "from a coordinator's return until transfers go on; 4.5: as measured");
ABSL_FLAG(std::string, silences, "", "LENGTH/EVERY: of every site's link, as 3s/1m");
ABSL_FLAG(std::string, jitter, "",
          "FROM..TO: shares of a link's rate, drawn anew every second, as 0.1..1");
ABSL_FLAG(std::string, stragglers, "",
          "LENGTH/EVERY: how much longer some step of every site takes, as exp:5s/exp:10m");
ABSL_FLAG(double, step_spread, 0, "standard deviation of a step's time over its mean, log-normal");
ABSL_FLAG(std::string, codec_up, "int4", "worker to coordinator");
ABSL_FLAG(std::string, codec_down, "int4", "coordinator to worker");
ABSL_FLAG(double, max_pace, 0, "as membership.max_pace");
ABSL_FLAG(std::string, coordinator_link, "10gbit", "of the coordinator, each way");
ABSL_FLAG(std::string, tiers, "",
          "COUNTxRATE@RTT: coordinators above, as 32x800mbit@100ms: 32 of them");
ABSL_FLAG(double, merge_gb_per_s, 20, "memory moved by a merge; 20: two cores");
ABSL_FLAG(double, commit_ms, 25, "what making a round durable takes");
ABSL_FLAG(int, slices, 1, "pieces that a fragment is merged and answered in");
ABSL_FLAG(double, grace_ms, 0, "as membership.grace_ms");
ABSL_FLAG(int, quorum, 1, "as membership.quorum");
ABSL_FLAG(double, failure_hours, 0, "mean time between two deaths of a worker; 0: none");
ABSL_FLAG(double, lease_s, 10, "so long a dead worker is waited for");
ABSL_FLAG(double, restart_s, 120, "until a dead worker is back");
ABSL_FLAG(int64_t, steps, 0, "of the schedule; 0: five times H, and more where something is amiss");
ABSL_FLAG(uint64_t, seed, 1, "who dies when, and what else is drawn");
ABSL_FLAG(std::string, sweep, "", "FROM,TO,COUNT: rates for the sites' links");
ABSL_FLAG(double, target, 0.99, "utilization, with --need what is asked for");
ABSL_FLAG(bool, need, false, "the least rate of the sites' links that reaches --target");
ABSL_FLAG(double, coordinator_memory_gb, 256, "of one machine");
ABSL_FLAG(double, disk_gb_per_s, 1.7, "of one machine's disk; 1.7: what was measured");
ABSL_FLAG(int, snapshot_every_rounds, 10, "of the coordinator, between two saves of a fragment");
ABSL_FLAG(double, days, 0, "of training, to say what it moves; 0: does not say");
ABSL_FLAG(double, egress_per_tb, 0, "the price of 10^12 bytes sent, in any currency");

namespace causeway::server {
namespace {

constexpr double kPlanEfficiency = 0.85;

std::string Printed(const nlohmann::json& json) { return absl::StrCat(json.dump(2), "\n"); }

absl::StatusOr<CodecBits> BitsOf(v1::Codec id) {
  constexpr size_t kValues = size_t{1} << 20;
  ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(id));
  return CodecBits{
      .codec = id,
      .name = std::string(codec->name()),
      .bits_per_value = static_cast<double>(codec->EncodedBytes(kValues)) * 8 / kValues};
}

absl::StatusOr<CodecBits> CodecFromFlag(const char* flag, const std::string& name) {
  v1::Codec id = v1::CODEC_UNSPECIFIED;
  if (!v1::Codec_Parse(absl::AsciiStrToUpper(name), &id) || id == v1::CODEC_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " must be fp32, bf16, int8, e3m0, e2m1, int4 or lm2; it is \"", name, "\""));
  }
  return BitsOf(id);
}

absl::StatusOr<std::vector<StarSite>> SitesFromFlags(bool required) {
  const double step_ms = absl::GetFlag(FLAGS_step_ms);
  if (!(step_ms > 0 && step_ms < 1e9)) {
    return absl::InvalidArgumentError("--step_ms=MILLISECONDS of an inner step is required");
  }
  const double rtt_ms = absl::GetFlag(FLAGS_rtt_ms);
  if (!(rtt_ms >= 0 && rtt_ms < 1e6)) {
    return absl::InvalidArgumentError(absl::StrCat("--rtt_ms must be 0 .. 1e6; it is ", rtt_ms));
  }
  std::string links = absl::GetFlag(FLAGS_links);
  if (links.empty()) {
    if (required) {
      return absl::InvalidArgumentError(
          "--links is required: those of the sites, as in --links=1gbit,400mbit or 3x1gbit");
    }
    links = "2xunlimited";
  }
  return ParseSites(links,
                    {.step_seconds = step_ms / 1e3,
                     .one_way_seconds = rtt_ms / 2e3,
                     .connections = absl::GetFlag(FLAGS_connections)},
                    absl::GetFlag(FLAGS_max_pace));
}

// Sizes of the fragments and the schedule: of a configuration, or of the flags.
absl::Status SetModel(StarSetting& setting) {
  const std::string config_file = absl::GetFlag(FLAGS_config);
  const double params = absl::GetFlag(FLAGS_params);
  if (config_file.empty() == (params == 0)) {
    return absl::InvalidArgumentError(
        "give either --params=NUMBER, as in 10e9, or --config=FILE, a run's configuration");
  }
  CodecBits up;
  CodecBits down;
  if (config_file.empty()) {
    const int fragments = absl::GetFlag(FLAGS_fragments);
    if (!(params >= 1 && params <= 1e15) || fragments < 1 || fragments > 100'000) {
      return absl::InvalidArgumentError(
          "--params must be 1 .. 1e15, --fragments 1 .. steps_between_syncs");
    }
    setting.fragment_values.assign(static_cast<size_t>(fragments), params / fragments);
    setting.steps_between_syncs = absl::GetFlag(FLAGS_steps_between_syncs);
    setting.overlap_steps = absl::GetFlag(FLAGS_overlap_steps);
    setting.max_overlap_steps = absl::GetFlag(FLAGS_max_overlap_steps);
    ASSIGN_OR_RETURN(up, CodecFromFlag("--codec_up", absl::GetFlag(FLAGS_codec_up)));
    ASSIGN_OR_RETURN(down, CodecFromFlag("--codec_down", absl::GetFlag(FLAGS_codec_down)));
  } else {
    ASSIGN_OR_RETURN(const v1::RunConfig config,
                     LoadCompleteConfig(config_file, absl::GetFlag(FLAGS_preset)));
    ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
    for (int i = 0; i < plan.fragments(); ++i) {
      setting.fragment_values.push_back(static_cast<double>(plan.range(i).size()));
    }
    setting.steps_between_syncs = config.sync().steps_between_syncs();
    setting.overlap_steps = config.sync().overlap_steps();
    setting.max_overlap_steps = config.sync().max_overlap_steps();
    ASSIGN_OR_RETURN(up, BitsOf(config.sync().codec_up()));
    ASSIGN_OR_RETURN(down, BitsOf(config.sync().codec_down()));
  }
  setting.bits_up = up.bits_per_value;
  setting.bits_down = down.bits_per_value;
  return absl::OkStatus();
}

absl::StatusOr<Disturbances> DisturbancesFromFlags() {
  Disturbances disturbances;
  for (const auto& [flag, text, what] :
       {std::tuple("--outages", absl::GetFlag(FLAGS_outages), &disturbances.outages),
        std::tuple("--silences", absl::GetFlag(FLAGS_silences), &disturbances.silences),
        std::tuple("--stragglers", absl::GetFlag(FLAGS_stragglers), &disturbances.stragglers)}) {
    absl::StatusOr<Interruptions> parsed = ParseInterruptions(text);
    if (!parsed.ok()) return Annotate(parsed.status(), flag);
    *what = *parsed;
  }
  disturbances.return_seconds = absl::GetFlag(FLAGS_return_s);
  disturbances.step_spread = absl::GetFlag(FLAGS_step_spread);
  RETURN_IF_ERROR(Annotate(ParseJitter(absl::GetFlag(FLAGS_jitter), disturbances), "--jitter"));
  RETURN_IF_ERROR(CheckDisturbances(disturbances));
  return disturbances;
}

absl::StatusOr<double> Efficiency(double otherwise) {
  const double efficiency = absl::GetFlag(FLAGS_link_efficiency);
  if (efficiency == 0) return otherwise;
  if (!(efficiency > 0 && efficiency <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--link_efficiency must be above 0 and at most 1; it is ", efficiency));
  }
  return efficiency;
}

absl::StatusOr<StarSetting> SettingFromFlags() {
  StarSetting setting;
  const bool links_are_asked_for = absl::GetFlag(FLAGS_need) || !absl::GetFlag(FLAGS_sweep).empty();
  ASSIGN_OR_RETURN(setting.sites, SitesFromFlags(!links_are_asked_for));
  ASSIGN_OR_RETURN(const double efficiency, Efficiency(1));
  for (StarSite& site : setting.sites) {
    site.up_bit_per_s *= efficiency;
    site.down_bit_per_s *= efficiency;
  }
  RETURN_IF_ERROR(SetModel(setting));
  setting.object_bits = 8 * absl::GetFlag(FLAGS_object_bytes);
  StarCoordinator& coordinator = setting.coordinator;
  ASSIGN_OR_RETURN(setting.tiers,
                   ParseTiers(absl::GetFlag(FLAGS_tiers), absl::GetFlag(FLAGS_rtt_ms) / 2e3));
  for (StarTier& tier : setting.tiers) {
    tier.up_bit_per_s *= efficiency;
    tier.down_bit_per_s *= efficiency;
  }
  ASSIGN_OR_RETURN(coordinator.in_bit_per_s, ParseRate(absl::GetFlag(FLAGS_coordinator_link)));
  coordinator.out_bit_per_s = coordinator.in_bit_per_s;
  coordinator.merge_bytes_per_s = absl::GetFlag(FLAGS_merge_gb_per_s) * 1e9;
  coordinator.commit_seconds = absl::GetFlag(FLAGS_commit_ms) / 1e3;
  coordinator.slices = absl::GetFlag(FLAGS_slices);
  coordinator.grace_seconds = absl::GetFlag(FLAGS_grace_ms) / 1e3;
  coordinator.quorum = absl::GetFlag(FLAGS_quorum);
  setting.failures.mean_seconds_between = absl::GetFlag(FLAGS_failure_hours) * 3600;
  setting.failures.lease_seconds = absl::GetFlag(FLAGS_lease_s);
  setting.failures.restart_seconds = absl::GetFlag(FLAGS_restart_s);
  ASSIGN_OR_RETURN(setting.disturbances, DisturbancesFromFlags());
  const int64_t steps = absl::GetFlag(FLAGS_steps);
  setting.warm_up_steps = setting.steps_between_syncs;
  setting.steps = steps != 0                   ? steps
                  : setting.disturbances.any() ? DisturbedSteps(setting)
                                               : int64_t{5} * setting.steps_between_syncs;
  setting.seed = absl::GetFlag(FLAGS_seed);
  return setting;
}

absl::StatusOr<std::string> PaperTable(bool json) {
  const PaperComparison bandwidths = ComparePaperBandwidths();
  const std::vector<PaperHours> hours = ComparePaperHours();
  ASSIGN_OR_RETURN(const std::vector<OwnRow> own, OwnTable());
  return json ? Printed(PaperJson(bandwidths, hours, own)) : PaperText(bandwidths, hours, own);
}

absl::StatusOr<std::string> Sweep(const StarSetting& setting, const std::string& sweep, bool json) {
  constexpr int kMostPoints = 10'000;
  const std::vector<std::string> parts = absl::StrSplit(sweep, ',');
  int count = 0;
  const absl::StatusOr<double> from = ParseRate(parts[0]);
  const absl::StatusOr<double> to = parts.size() == 3 ? ParseRate(parts[1]) : from;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &count) || count < 2 ||
      count > kMostPoints || !from.ok() || !to.ok() || !(*from < *to) || std::isinf(*to)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sweep must be FROM,TO,COUNT, as in 100mbit,10gbit,21; it is \"", sweep, "\""));
  }
  std::vector<SweepPoint> points;
  for (int i = 0; i < count; ++i) {
    SweepPoint point = {.bit_per_s = *from * std::pow(*to / *from, i / (count - 1.0))};
    ASSIGN_OR_RETURN(point.result, SimulateStar(WithLinks(setting, point.bit_per_s)));
    points.push_back(std::move(point));
  }
  return json ? Printed(SweepJson(points)) : SweepText(points);
}

absl::StatusOr<std::string> Need(const StarSetting& setting, bool json) {
  const double target = absl::GetFlag(FLAGS_target);
  ASSIGN_OR_RETURN(const double rate, NeededRate(setting, target));
  double values = 0;
  double bound = 0;
  for (const double fragment : setting.fragment_values) values += fragment;
  for (const StarSite& site : setting.sites) {
    bound = std::max(bound,
                     ThroughputBound(values, std::max(setting.bits_up, setting.bits_down),
                                     setting.steps_between_syncs, site.step_seconds / site.pace));
  }
  if (json) {
    return Printed({{"target", target}, {"needed_bit_per_s", rate}, {"bound_bit_per_s", bound}});
  }
  return absl::StrFormat(
      "every site's link must carry %s each way for a utilization of %.4g %%; the bound for any "
      "overlap is %s\n",
      RateText(rate), 100 * target, RateText(bound));
}

}  // namespace

absl::StatusOr<std::string> SimulateCommand(bool json) {
  const std::string table = absl::GetFlag(FLAGS_table);
  if (table == "paper") {
    if (!absl::GetFlag(FLAGS_sweep).empty() || absl::GetFlag(FLAGS_need)) {
      return absl::InvalidArgumentError(
          "--table=paper has settings of its own: give it without --sweep and --need");
    }
    return PaperTable(json);
  }
  if (!table.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--table must be paper; it is \"", table, "\""));
  }
  ASSIGN_OR_RETURN(const StarSetting setting, SettingFromFlags());
  const std::string sweep = absl::GetFlag(FLAGS_sweep);
  if (!sweep.empty()) return Sweep(setting, sweep, json);
  if (absl::GetFlag(FLAGS_need)) return Need(setting, json);
  ASSIGN_OR_RETURN(const StarResult result, SimulateStar(setting));
  std::optional<SlackStudy> slack;
  if (setting.disturbances.any() || setting.max_overlap_steps > setting.overlap_steps) {
    ASSIGN_OR_RETURN(slack, StudySlack(setting));
  }
  return json ? Printed(StarJson(setting, result, slack)) : StarText(setting, result, slack);
}

absl::StatusOr<std::string> PlanCommand(bool json) {
  PlanRequest request;
  ASSIGN_OR_RETURN(request.sites, SitesFromFlags(/*required=*/true));
  StarSetting model;
  RETURN_IF_ERROR(SetModel(model));
  for (const double fragment : model.fragment_values) request.values += fragment;
  ASSIGN_OR_RETURN(request.link_efficiency, Efficiency(kPlanEfficiency));
  request.target = absl::GetFlag(FLAGS_target);
  for (const v1::Codec codec : {v1::INT4, v1::LM2}) {
    ASSIGN_OR_RETURN(CodecBits bits, BitsOf(codec));
    request.uplinks.push_back(std::move(bits));
  }
  ASSIGN_OR_RETURN(request.downlink, BitsOf(v1::INT4));
  ASSIGN_OR_RETURN(request.coordinator_bit_per_s, ParseRate(absl::GetFlag(FLAGS_coordinator_link)));
  for (const auto& [flag, value] :
       {std::pair("--coordinator_memory_gb", absl::GetFlag(FLAGS_coordinator_memory_gb)),
        std::pair("--disk_gb_per_s", absl::GetFlag(FLAGS_disk_gb_per_s)),
        std::pair("--merge_gb_per_s", absl::GetFlag(FLAGS_merge_gb_per_s))}) {
    if (value > 0 && value <= 1e9) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " must be above 0 and at most 1e9; it is ", value));
  }
  request.coordinator_memory_bytes = absl::GetFlag(FLAGS_coordinator_memory_gb) * 1e9;
  request.disk_bytes_per_s = absl::GetFlag(FLAGS_disk_gb_per_s) * 1e9;
  request.snapshot_every_rounds = absl::GetFlag(FLAGS_snapshot_every_rounds);
  request.coordinator.merge_bytes_per_s = absl::GetFlag(FLAGS_merge_gb_per_s) * 1e9;
  request.coordinator.commit_seconds = absl::GetFlag(FLAGS_commit_ms) / 1e3;
  ASSIGN_OR_RETURN(request.disturbances, DisturbancesFromFlags());
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(request));
  std::optional<ConfiguredRun> configured;
  if (!absl::GetFlag(FLAGS_config).empty()) {
    configured.emplace();
    ASSIGN_OR_RETURN(configured->expected, ExpectOf(request, model));
    configured->schedule = std::move(model);
  }
  const CostRequest cost = {.days = absl::GetFlag(FLAGS_days),
                            .egress_per_tb = absl::GetFlag(FLAGS_egress_per_tb)};
  const auto counts = [](double value) { return value >= 0 && value <= 1e9; };
  if (!counts(cost.days) || !counts(cost.egress_per_tb)) {
    return absl::InvalidArgumentError("--days and --egress_per_tb must be 0 .. 1e9");
  }
  return json ? Printed(PlanJson(request, plan, configured, cost))
              : PlanText(request, plan, configured, cost);
}

}  // namespace causeway::server
