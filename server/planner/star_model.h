// Simulates what Causeway's own topology makes of links: sites that train and exchange fragments
// with a coordinator, simulated event by event. docs/simulator.md says what is in the model and
// what is not.
//
// A site computes inner steps. After a send step it queues the fragment's delta on its uplink,
// after a merge step it needs that round's answer and waits if it is not there: at once, or with
// max_overlap_steps so many steps after the send. Every site has one
// uplink and one downlink, first in, first out; the coordinator has a link in, a link out and one
// merge at a time. Who sends to it at the same time shares its link fairly. A round closes when
// every member that was there before its
// send step has contributed, or when its grace is over; then it is merged, made durable, and its
// answer goes to every member.
//
// Time is simulated, randomness follows from the seed: the same setting gives the same result.
#ifndef CAUSEWAY_SERVER_PLANNER_STAR_MODEL_H_
#define CAUSEWAY_SERVER_PLANNER_STAR_MODEL_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/planner/disturbances.h"

namespace causeway::server {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Sites that are alike.
struct StarSite {
  std::string name;
  int count = 1;
  double step_seconds = 1;           // Time of an inner step.
  double pace = 1;                   // Steps of the schedule per inner step, 1 or more.
  double up_bit_per_s = kUnlimited;  // Payload rate.
  double down_bit_per_s = kUnlimited;
  double one_way_seconds = 0;
  // That an object is spread over: its last chunks cross at a share of the link (stragglers.h), and
  // small ones at what connections find out between rests (rested_connections.h). 0: all crosses at
  // the full rate.
  int connections = 0;
};

// The coordinator on two cores and a local disk, as measured (docs/reports/results.md, Merge and
// Durability): bytes moved by a merge, and the time that a round's commit adds.
inline constexpr double kMeasuredMergeBytesPerSecond = 20e9;
inline constexpr double kMeasuredCommitSeconds = 0.025;

// theta, momentum and published in fp32, read and written.
inline constexpr double kMergedStateBytes = 24;

// A fragment's bytes on the wire beside its values and its frames, each way
// (docs/reports/experiments.md, Bytes on the wire).
inline constexpr double kMeasuredObjectBytes = 2500;

struct StarCoordinator {
  double in_bit_per_s = kUnlimited;
  double out_bit_per_s = kUnlimited;
  // Bytes of state, deltas and answers that a merge moves: 24 per value, and what is encoded.
  double merge_bytes_per_s = kUnlimited;
  double commit_seconds = 0;  // Until a merged round is durable; rounds overlap in it.
  // Pieces of a fragment that are sent, merged and answered one after another. 1: an answer leaves
  // when all of it is merged, as causeway-coordinator does it.
  int slices = 1;
  double grace_seconds = 0;  // After the quorum, a round closes without the rest. 0: it waits.
  int quorum = 1;
};

// A coordinator above others (upper_tiers.h).
struct StarTier {
  int count = 1;                     // Coordinators below it, this one's own included.
  double up_bit_per_s = kUnlimited;  // Payload rate of the link of each of those.
  double down_bit_per_s = kUnlimited;
  double one_way_seconds = 0;
};

struct StarFailures {
  double mean_seconds_between = 0;  // Life of a worker, exponentially distributed; 0: none dies.
  double lease_seconds = 10;        // So long a dead worker is waited for.
  double restart_seconds = 120;     // Until it is back and fetches the state; above the lease.
};

struct StarSetting {
  std::vector<StarSite> sites;
  std::vector<double> fragment_values;
  int steps_between_syncs = 100;
  int overlap_steps = 0;
  int max_overlap_steps = 0;  // tau_max; 0: overlap_steps.
  double bits_up = 32;        // Per value.
  double bits_down = 32;
  double object_bits = 0;       // Beside a fragment's values, each way: requests, hashes, status.
  StarCoordinator coordinator;  // Those of upper tiers are like it.
  std::vector<StarTier> tiers;  // Above it, from the lowest; needs one slice, no deaths.
  StarFailures failures;
  Disturbances disturbances = {};  // None with tiers.
  int64_t steps = 500;             // Steps of the schedule.
  int64_t warm_up_steps = 100;     // Not counted. Below steps.
  uint64_t seed = 1;
};

// Per worker of one entry of StarSetting::sites, after the warm-up.
struct StarSiteResult {
  std::string name;
  // compute / (compute + waiting for answers); a straggler's long step is compute.
  double utilization = 0;
  // Compute that counts over all time: what a death loses, the time until the worker is back, and
  // what stragglers take longer, is not in it.
  double goodput = 0;
  double up_busy = 0;  // Share of what the link could carry.
  double down_busy = 0;
};

struct StarTierResult {
  double up_busy = 0;  // The link of each of those below.
  double down_busy = 0;
  double in_busy = 0;  // The coordinator's own.
  double out_busy = 0;
  double merge_busy = 0;
};

struct StarResult {
  std::vector<StarSiteResult> sites;
  std::vector<StarTierResult> tiers;
  double utilization = 0;  // All workers together.
  double goodput = 0;
  double seconds = 0;           // After the warm-up.
  double seconds_per_step = 0;  // Time of a step of the schedule.
  double exchange_seconds = 0;  // From sending a delta to having the answer, mean over all.
  double longest_exchange_seconds = 0;
  double in_busy = 0;
  double out_busy = 0;
  double merge_busy = 0;
  double up_bytes_per_step = 0;  // Sent by a worker that is always there, per step of the schedule.
  double down_bytes_per_step = 0;
  double peak_held_bytes = 0;  // Deltas that wait for their merge.
  int64_t rounds = 0;
  int64_t rounds_without_somebody = 0;  // Closed without a member that was expected.
  int64_t deaths = 0;
  // Steps of slack beyond overlap_steps that would have spared a worker its wait, one number for
  // every stretch of time in which it had late answers, ascending.
  std::vector<int> late_steps;
};

// INVALID_ARGUMENT for a setting that makes no sense, naming the field.
absl::StatusOr<StarResult> SimulateStar(const StarSetting& setting);

// The least rate of a worker's link, in bits per second, with which streaming can do without
// waiting however long the overlap: values * bits / (H * step).
double ThroughputBound(double values, double bits, int steps_between_syncs, double step_seconds);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_STAR_MODEL_H_
