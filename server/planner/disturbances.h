// Disturbances of sites, links and the coordinator of a simulated run, as distributions. All draws
// follow from the run's seed.
#ifndef CAUSEWAY_SERVER_PLANNER_DISTURBANCES_H_
#define CAUSEWAY_SERVER_PLANNER_DISTURBANCES_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway::server {

// A time that is drawn again and again, in seconds.
struct RandomSeconds {
  enum class Shape { kFixed, kUniform, kExponential };
  Shape shape = Shape::kFixed;
  double mean = 0;
  double half_width = 0;  // kUniform lies in mean - half_width .. mean + half_width.

  // `uniform` lies in [0, 1).
  double At(double uniform) const;
};

// Stretches of time in which something stands still.
struct Interruptions {
  RandomSeconds length = {};  // Mean 0: there are none.
  RandomSeconds every = {};   // From the beginning of one to that of the next, at least the length.
  double once_at = -1;        // From 0 on: there is one, which begins then.

  bool any() const { return length.mean > 0; }
};

// From the start of a coordinator until the workers' transfers go on: the mean of four measured
// outages, 3.4 to 5.7 s (docs/reports/simulator_checks.md, Against measured outages).
inline constexpr double kMeasuredReturnSeconds = 4.5;

struct Disturbances {
  Interruptions outages = {};  // The coordinator is away; what has arrived is kept.
  double return_seconds = kMeasuredReturnSeconds;  // After each of them.
  Interruptions silences = {};                     // Each worker's link is silent, both ways.
  // Shares of a worker's link that are there, drawn evenly every second. 0 <= least <= most <= 1.
  double least_rate = 1;
  double most_rate = 1;
  Interruptions stragglers = {};  // Each worker has its own: its step takes so much longer.
  double step_spread = 0;  // Standard deviation over mean of an inner step's time, log-normal.

  bool jitters() const { return least_rate < 1; }
  // Whether workers that are alike differ in what befalls them.
  bool tells_workers_apart() const {
    return silences.any() || jitters() || stragglers.any() || step_spread > 0;
  }
  bool any() const { return outages.any() || tells_workers_apart(); }
  // Share of a link's rate that is there on average, without outages.
  double mean_rate() const;
};

// INVALID_ARGUMENT for what makes no sense, naming the field.
absl::Status CheckDisturbances(const Disturbances& disturbances);

// The interruptions of one thing, one after another.
class InterruptionTimes {
 public:
  struct Stretch {
    double begin = std::numeric_limits<double>::infinity();
    double end = std::numeric_limits<double>::infinity();
  };
  InterruptionTimes() = default;  // There are none.
  InterruptionTimes(const Interruptions& interruptions, uint64_t seed, uint64_t stream);

  // Begins where the one before ended at the earliest; never, when there are no more.
  Stretch Next();

 private:
  double Uniform();

  Interruptions interruptions_;
  uint64_t seed_ = 0;
  uint64_t stream_ = 0;
  uint64_t drawn_ = 0;
  Stretch last_ = {0, 0};
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_DISTURBANCES_H_
