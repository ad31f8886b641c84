#include "server/planner/site_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

constexpr std::array<std::pair<const char*, double>, 4> kUnits = {
    std::pair{"tbit", 1e12}, std::pair{"gbit", 1e9}, std::pair{"mbit", 1e6},
    std::pair{"kbit", 1e3}};

absl::Status Malformed(absl::string_view site) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", site,
                   "\" is no site: expected [COUNTx]RATE[/RATE][@STEP], as in 1gbit, 3x400mbit, "
                   "1gbit/200mbit (up/down) or 400mbit@1600ms"));
}

absl::StatusOr<StarSite> ParseSite(absl::string_view text, const SiteDefaults& defaults) {
  StarSite site = {.name = std::string(text),
                   .step_seconds = defaults.step_seconds,
                   .one_way_seconds = defaults.one_way_seconds,
                   .connections = defaults.connections};
  std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('@', 1));
  if (parts.first.size() != text.size()) {
    absl::Duration step;
    if (!absl::ParseDuration(parts.second, &step) || step <= absl::ZeroDuration()) {
      return Malformed(text);
    }
    site.step_seconds = absl::ToDoubleSeconds(step);
  }
  absl::string_view rates = parts.first;
  const size_t times = rates.find('x');
  if (times != absl::string_view::npos) {
    if (!absl::SimpleAtoi(rates.substr(0, times), &site.count) || site.count < 1) {
      return Malformed(text);
    }
    rates.remove_prefix(times + 1);
  }
  parts = absl::StrSplit(rates, absl::MaxSplits('/', 1));
  const bool both = parts.first.size() == rates.size();
  const absl::StatusOr<double> up = ParseRate(parts.first);
  const absl::StatusOr<double> down = both ? up : ParseRate(parts.second);
  if (!up.ok() || !down.ok()) return Malformed(text);
  site.up_bit_per_s = *up;
  site.down_bit_per_s = *down;
  return site;
}

absl::StatusOr<StarTier> ParseTier(absl::string_view text, double one_way_seconds) {
  // A time follows the '@' of a site as well.
  const absl::StatusOr<StarSite> site = ParseSite(text, {.step_seconds = 2 * one_way_seconds});
  if (!site.ok() || !absl::StrContains(text, 'x')) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no tier: expected COUNTxRATE[/RATE][@ROUND_TRIP], as in "
                     "32x800mbit@100ms"));
  }
  return StarTier{.count = site->count,
                  .up_bit_per_s = site->up_bit_per_s,
                  .down_bit_per_s = site->down_bit_per_s,
                  .one_way_seconds = site->step_seconds / 2};
}

}  // namespace

absl::StatusOr<double> ParseRate(absl::string_view text) {
  if (text == "unlimited") return kUnlimited;
  absl::string_view number = text;
  for (const auto& [unit, bits] : kUnits) {
    double value = 0;
    if (!absl::ConsumeSuffix(&number, unit)) continue;
    if (!absl::SimpleAtod(number, &value) || !(value > 0) || !std::isfinite(value)) break;
    return value * bits;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is no rate: expected a number and kbit, mbit, gbit or tbit, as in 400mbit"));
}

std::string RateText(double bit_per_s) {
  if (std::isinf(bit_per_s)) return "unlimited";
  for (const auto& [unit, bits] : kUnits) {
    if (bit_per_s < 0.9995 * bits) continue;
    const char letter =
        unit[0] == 'k' ? 'k' : absl::ascii_toupper(static_cast<unsigned char>(unit[0]));
    return absl::StrFormat("%.3g %cbit/s", bit_per_s / bits, letter);
  }
  return absl::StrFormat("%.3g bit/s", bit_per_s);
}

absl::StatusOr<std::vector<StarSite>> ParseSites(absl::string_view text,
                                                 const SiteDefaults& defaults, double max_pace) {
  std::vector<StarSite> sites;
  double fastest = kUnlimited;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    ASSIGN_OR_RETURN(StarSite site, ParseSite(part, defaults));
    fastest = std::min(fastest, site.step_seconds);
    sites.push_back(std::move(site));
  }
  for (StarSite& site : sites) {
    site.pace = std::clamp(site.step_seconds / fastest, 1.0, std::max(1.0, max_pace));
  }
  return sites;
}

absl::StatusOr<std::vector<StarTier>> ParseTiers(absl::string_view text, double one_way_seconds) {
  std::vector<StarTier> tiers;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    ASSIGN_OR_RETURN(tiers.emplace_back(), ParseTier(part, one_way_seconds));
  }
  return tiers;
}

}  // namespace causeway::server
