// Links and sites as people write them.
//
//   RATE    500kbit, 400mbit, 1gbit, 2.5gbit: bits per second, powers of ten
//   SITE    [COUNTx]RATE[/RATE][@STEP]
//           3x1gbit            three sites, 1 Gbit/s each way
//           1gbit/200mbit      1 Gbit/s to the coordinator, 200 Mbit/s from it
//           400mbit@1600ms     an inner step takes this site 1600 ms
//   TIER    COUNTxRATE[/RATE][@ROUND_TRIP]
//           32x800mbit@100ms   32 coordinators below one, 800 Mbit/s and 100 ms there and back each
#ifndef CAUSEWAY_SERVER_PLANNER_SITE_TEXT_H_
#define CAUSEWAY_SERVER_PLANNER_SITE_TEXT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/planner/star_model.h"

namespace causeway::server {

// Bits per second, above 0; "unlimited" is one, too. INVALID_ARGUMENT otherwise.
absl::StatusOr<double> ParseRate(absl::string_view text);

// "1.25 Gbit/s", "400 Mbit/s", "unlimited".
std::string RateText(double bit_per_s);

struct SiteDefaults {
  double step_seconds = 1;
  double one_way_seconds = 0;
  int connections = 0;
};

// Sites separated by commas. A site that is slower than the fastest gets the pace that lets it keep
// up, at most max_pace (membership.max_pace; 1 or less: no paces). INVALID_ARGUMENT names the site.
absl::StatusOr<std::vector<StarSite>> ParseSites(absl::string_view text,
                                                 const SiteDefaults& defaults, double max_pace);

// Tiers separated by commas, from the lowest. INVALID_ARGUMENT names the tier.
absl::StatusOr<std::vector<StarTier>> ParseTiers(absl::string_view text, double one_way_seconds);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_SITE_TEXT_H_
