#include "server/planner/star_model.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/planner/star_run.h"

namespace causeway::server {
namespace {

absl::Status Require(bool holds, absl::string_view what) {
  return holds ? absl::OkStatus() : absl::InvalidArgumentError(what);
}

absl::Status CheckSite(const StarSite& site) {
  RETURN_IF_ERROR(Require(site.count >= 1 && site.count <= 100'000, "count must be 1 .. 100000"));
  RETURN_IF_ERROR(Require(site.step_seconds > 0 && site.step_seconds < 1e6,
                          "step_seconds must be above 0 and below 1e6"));
  RETURN_IF_ERROR(Require(site.pace >= 1 && site.pace <= 1000, "pace must be 1 .. 1000"));
  RETURN_IF_ERROR(
      Require(site.up_bit_per_s > 0 && site.down_bit_per_s > 0, "link rates must be positive"));
  RETURN_IF_ERROR(
      Require(site.connections >= 0 && site.connections <= 256, "connections must be 0 .. 256"));
  return Require(site.one_way_seconds >= 0 && site.one_way_seconds < 1e6,
                 "one_way_seconds must be 0 or more and below 1e6");
}

absl::Status CheckTiers(const StarSetting& setting) {
  for (const StarTier& tier : setting.tiers) {
    RETURN_IF_ERROR(
        Require(tier.count >= 1 && tier.count <= 100'000, "a tier's count must be 1 .. 100000"));
    RETURN_IF_ERROR(Require(tier.up_bit_per_s > 0 && tier.down_bit_per_s > 0,
                            "a tier's rates must be positive"));
    RETURN_IF_ERROR(Require(tier.one_way_seconds >= 0 && tier.one_way_seconds < 1e6,
                            "a tier's one_way_seconds must be 0 or more and below 1e6"));
  }
  const bool simple = setting.coordinator.slices == 1 &&
                      setting.failures.mean_seconds_between == 0 && !setting.disturbances.any();
  return Require(setting.tiers.empty() || simple,
                 "tiers need fragments of one slice, no deaths and "
                 "nothing that is amiss: one region stands for all");
}

absl::Status CheckSetting(const StarSetting& setting) {
  RETURN_IF_ERROR(Require(!setting.sites.empty(), "sites: at least one is needed"));
  for (const StarSite& site : setting.sites) {
    RETURN_IF_ERROR(Annotate(CheckSite(site), absl::StrCat("site ", site.name)));
  }
  const auto fragments = static_cast<int64_t>(setting.fragment_values.size());
  RETURN_IF_ERROR(Require(fragments >= 1 && fragments <= setting.steps_between_syncs,
                          absl::StrCat("fragments must be 1 .. H = ", setting.steps_between_syncs,
                                       "; there are ", fragments)));
  RETURN_IF_ERROR(Require(
      std::ranges::all_of(setting.fragment_values, [](double v) { return v > 0 && v < 1e18; }),
      "every fragment needs values"));
  RETURN_IF_ERROR(
      Require(setting.overlap_steps >= 0 && (setting.overlap_steps < setting.steps_between_syncs),
              absl::StrCat("overlap_steps must be 0 .. H - 1 = ", setting.steps_between_syncs - 1,
                           "; it is ", setting.overlap_steps)));
  const int latest = setting.max_overlap_steps;
  RETURN_IF_ERROR(Require(
      latest == 0 || (latest >= setting.overlap_steps && latest < setting.steps_between_syncs),
      absl::StrCat(
          "max_overlap_steps must be 0, or overlap_steps .. H - 1 = ", setting.overlap_steps,
          " .. ", setting.steps_between_syncs - 1, "; it is ", latest)));
  RETURN_IF_ERROR(CheckDisturbances(setting.disturbances));
  RETURN_IF_ERROR(Require(setting.bits_up > 0 && setting.bits_down > 0, "bits must be positive"));
  RETURN_IF_ERROR(Require(setting.object_bits >= 0,
                          "what an object takes beside its values must be 0 or more"));
  RETURN_IF_ERROR(Require(setting.warm_up_steps >= 0 && setting.warm_up_steps < setting.steps,
                          absl::StrCat("steps must be above the warm-up's ", setting.warm_up_steps,
                                       "; there are ", setting.steps)));
  const StarCoordinator& coordinator = setting.coordinator;
  RETURN_IF_ERROR(Require(coordinator.in_bit_per_s > 0 && coordinator.out_bit_per_s > 0 &&
                              coordinator.merge_bytes_per_s > 0,
                          "the coordinator's rates must be positive"));
  RETURN_IF_ERROR(Require(coordinator.commit_seconds >= 0 && coordinator.grace_seconds >= 0,
                          "commit_seconds and grace_seconds must be 0 or more"));
  RETURN_IF_ERROR(
      Require(coordinator.slices >= 1 && coordinator.slices <= 1024, "slices must be 1 .. 1024"));
  int64_t workers = 0;
  for (const StarSite& site : setting.sites) workers += site.count;
  RETURN_IF_ERROR(Require(coordinator.quorum >= 1 && coordinator.quorum <= workers,
                          absl::StrCat("quorum must be 1 .. the number of workers, ", workers,
                                       "; it is ", coordinator.quorum)));
  RETURN_IF_ERROR(CheckTiers(setting));
  const StarFailures& failures = setting.failures;
  RETURN_IF_ERROR(Require(failures.mean_seconds_between >= 0,
                          "the mean time between failures must be 0 (none) or more"));
  return Require(
      failures.lease_seconds > 0 && failures.restart_seconds > failures.lease_seconds,
      absl::StrCat("a restart must take longer than the lease of ", failures.lease_seconds,
                   " s, within which a worker is still waited for; it takes ",
                   failures.restart_seconds, " s"));
}

}  // namespace

absl::StatusOr<StarResult> SimulateStar(const StarSetting& setting) {
  RETURN_IF_ERROR(CheckSetting(setting));
  return StarRun(setting).Run();
}

double ThroughputBound(double values, double bits, int steps_between_syncs, double step_seconds) {
  return values * bits / (steps_between_syncs * step_seconds);
}

}  // namespace causeway::server
