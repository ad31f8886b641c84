#include "server/planner/need.h"

#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "server/planner/paper_tables.h"
#include "server/planner/site_text.h"

namespace causeway::server {
namespace {

constexpr double kSlowest = 1e2;  // Bits per second.
constexpr double kFastest = 1e14;
constexpr double kPrecision = 1.001;

constexpr int kOwnFragments = 50;
constexpr int kOwnOverlap = 6;
constexpr double kOwnBits = 4.25;

}  // namespace

StarSetting WithLinks(StarSetting setting, double bit_per_s) {
  for (StarSite& site : setting.sites) {
    site.up_bit_per_s = bit_per_s;
    site.down_bit_per_s = bit_per_s;
  }
  return setting;
}

absl::StatusOr<double> NeededRate(StarSetting setting, double target) {
  if (!(target > 0 && target < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the utilization asked for must be above 0 and below 1; it is ", target));
  }
  double low = kSlowest;
  double high = kFastest;
  ASSIGN_OR_RETURN(const StarResult best, SimulateStar(WithLinks(setting, high)));
  if (best.utilization < target) {
    return absl::UnavailableError(absl::StrFormat(
        "no link reaches %.4g %%: with %s for every site it is %.4g %%; latency, the merge, the "
        "coordinator's link or a slow site is in the way",
        100 * target, RateText(high), 100 * best.utilization));
  }
  while (high / low > kPrecision) {
    const double middle = std::sqrt(low * high);
    ASSIGN_OR_RETURN(const StarResult result, SimulateStar(WithLinks(setting, middle)));
    (result.utilization < target ? low : high) = middle;
  }
  return high;
}

StarSetting OwnSetting(double values, double step_seconds) {
  StarSetting setting;
  setting.sites = {
      {.name = "site", .count = 2, .step_seconds = step_seconds, .one_way_seconds = 0.1}};
  setting.fragment_values.assign(kOwnFragments, values / kOwnFragments);
  setting.overlap_steps = kOwnOverlap;
  setting.bits_up = kOwnBits;
  setting.bits_down = kOwnBits;
  setting.coordinator.in_bit_per_s = 10e9;
  setting.coordinator.out_bit_per_s = 10e9;
  setting.coordinator.merge_bytes_per_s = kMeasuredMergeBytesPerSecond;
  setting.coordinator.commit_seconds = kMeasuredCommitSeconds;
  return setting;
}

absl::StatusOr<std::vector<OwnRow>> OwnTable() {
  constexpr std::array<double, kPaperModels.size()> kPaperNeeds = {3.0e9, 1.7e9, 1.4e9};
  constexpr double kPaperBits = 4;
  std::vector<OwnRow> rows;
  for (size_t m = 0; m < kPaperModels.size(); ++m) {
    const PaperModelSize& model = kPaperModels[m];
    const StarSetting setting = OwnSetting(model.params, model.step_seconds);
    OwnRow row = {.model = model.name, .paper_bit_per_s = kPaperNeeds[m]};
    row.bound_bit_per_s =
        ThroughputBound(model.params, kPaperBits, setting.steps_between_syncs, model.step_seconds);
    ASSIGN_OR_RETURN(row.needed_bit_per_s, NeededRate(setting, kPaperTargets.back()));
    ASSIGN_OR_RETURN(const StarResult result,
                     SimulateStar(WithLinks(setting, row.needed_bit_per_s)));
    row.exchange_seconds = result.exchange_seconds;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace causeway::server
