// Settings for a model and the links between its sites: what `causewayctl plan` recommends, and
// why.
#ifndef CAUSEWAY_SERVER_PLANNER_PLANNER_H_
#define CAUSEWAY_SERVER_PLANNER_PLANNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "server/planner/star_model.h"

namespace causeway::server {

// Codecs and what they take on the wire, scales included.
struct CodecBits {
  v1::Codec codec = v1::FP32;
  std::string name;
  double bits_per_value = 32;
};

struct PlanRequest {
  double values = 0;
  std::vector<StarSite> sites;  // Rates of the lines. Without connections: as many as they take.
  // Share of a line's rate that arrives as payload: 0.85 to 0.9 at 100 ms
  // (docs/reports/long_links.md).
  double link_efficiency = 0.85;
  double target = 0.99;
  // Candidates, from the one that costs training the least to the one that costs the link the
  // least.
  std::vector<CodecBits> uplinks;
  CodecBits downlink;
  double coordinator_bit_per_s = 10e9;  // One machine's, each way.
  double coordinator_memory_bytes = 256e9;
  StarCoordinator coordinator;  // Its links are the plan's.
  // One machine's, as measured (docs/reports/results.md, Durability).
  double disk_bytes_per_s = 1.7e9;
  int snapshot_every_rounds = 10;  // Rounds of one fragment; 1 or more.
  // Disturbances that the slack is for. None: the coordinator's own death, until it serves again. H
  // is chosen for the rate that the links have on average.
  Disturbances disturbances = {};
};

// How late an answer may come without being waited for.
struct SlackPlan {
  Disturbances disturbances;  // Purpose of the slack: the request's, or the coordinator's death.
  int max_overlap_steps = 0;
  int most_overlap_steps = 0;   // Limit that H and the paces set.
  std::vector<int> late_steps;  // As StarResult's, with all the slack that H allows.
  int needed_steps = 0;         // Slack with which hardly any of that is waited for.
  StarResult with;
  StarResult without;  // Where max_overlap_steps is overlap_steps.
};

struct Plan {
  int steps_between_syncs = 0;
  int fragments = 0;
  int overlap_steps = 0;
  CodecBits up;
  CodecBits down;
  int machines = 1;  // As many as these would be busy, or full; above 1: a larger one is needed.
  StarResult expected;
  bool reaches_target = false;
  // Keeps the utilization from being higher, or is the link that comes nearest to it.
  std::string binding;
  std::vector<double> needed_bit_per_s;  // By site, of payload: values * bits / (H * step).
  std::vector<int> connections;          // By site.
  double coordinator_memory_bytes = 0;
  double coordinator_bit_per_s = 0;  // The busier direction of its link, mean.
  double disk_bytes_per_s = 0;       // Deltas, answers, snapshots, and what goes to rest.
  double disk_bytes = 0;             // At most: these.
  // From a coordinator's start until it serves again, at most: its snapshots are read, and
  // what came since is read and merged again.
  double recovery_seconds = 0;
  double worker_state_bytes = 0;  // A worker's published copy and residual, beside training.
  SlackPlan slack;
};

// The smallest H in {30, 50, 100, 200, 500} with the most exact codec that reaches the target, and
// for these the smallest tau, then the smallest P, that do. If nothing does, what comes nearest.
// The slack is the least that leaves 0.05 % of the time to waiting, if H has so much.
// INVALID_ARGUMENT as SimulateStar; for no codecs or an efficiency beyond (0, 1].
absl::StatusOr<Plan> MakePlan(const PlanRequest& request);

// Says what to expect of a schedule as it is, over the request's links:
// fragments, H, tau, tau_max and bits are the setting's, everything else is the request's, its
// disturbances included. Errors as SimulateStar.
absl::StatusOr<StarResult> ExpectOf(const PlanRequest& request, StarSetting schedule);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_PLANNER_H_
