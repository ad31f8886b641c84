// How much a link must carry: the star model (star_model.h) turned around.
#ifndef CAUSEWAY_SERVER_PLANNER_NEED_H_
#define CAUSEWAY_SERVER_PLANNER_NEED_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/planner/star_model.h"

namespace causeway::server {

// The least rate of every site's link, both ways, in bits per second, at which the workers'
// utilization reaches `target`, within 0.1 %. UNAVAILABLE if no rate does: then latency, merge,
// coordinator or a slow site is in the way.
absl::StatusOr<double> NeededRate(StarSetting setting, double target);

// The sites' links all set to `bit_per_s`.
StarSetting WithLinks(StarSetting setting, double bit_per_s);

// Our schedule for the paper's models: two sites, int4 both ways (4.25 bits per value), H = 100, 50
// fragments of equal size, tau 6, 100 ms one way; the coordinator's link takes 10 Gbit/s each way,
// its merge and commit are as measured on two cores (docs/reports/results.md).
StarSetting OwnSetting(double values, double step_seconds);

struct OwnRow {
  std::string model;
  double paper_bit_per_s = 0;  // Needed by the paper's streaming with overlap and FP4 for 99 %.
  double bound_bit_per_s = 0;  // 4 bits per value: the least that any overlap could do with.
  double needed_bit_per_s = 0;
  double exchange_seconds = 0;  // At that rate.
};
absl::StatusOr<std::vector<OwnRow>> OwnTable();

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_NEED_H_
