// Coordinators of coordinators: what happens to a region's merged fragment until its answer is
// back.
//
// A coordinator below passes what it merged on as one delta, encoded as a site's; the coordinator
// above merges the deltas of all that are below it, and so on to the top, whose answer every
// coordinator hands down as it came. Regions are alike and do everything at the same time, so one
// stands for all: its links and the coordinators above it are queues, first in, first out.
#ifndef CAUSEWAY_SERVER_PLANNER_UPPER_TIERS_H_
#define CAUSEWAY_SERVER_PLANNER_UPPER_TIERS_H_

#include <vector>

#include "server/planner/star_model.h"

namespace causeway::server {

class UpperTiers {
 public:
  // The setting outlives the object.
  explicit UpperTiers(const StarSetting& setting);

  // When the answer to what the lowest coordinator has merged and made durable by `ready` is
  // durable there. Calls come in the order of `ready`, which FIFO queues need.
  double Pass(double ready, double values, bool counting);

  // Shares of `seconds`, by tier from the lowest.
  std::vector<StarTierResult> Results(double seconds) const;

 private:
  // A queue: what is put in starts when the one before is done.
  struct Queue {
    double free = 0;
    double busy = 0;  // Seconds, counted ones alone.
    double Take(double ready, double seconds, bool counting);
  };
  struct Tier {
    Queue up;
    Queue merge;
    Queue down;
    double in_seconds = 0;  // That the coordinator's own link would take if it did nothing else.
    double out_seconds = 0;
  };

  const StarSetting& setting_;
  std::vector<Tier> tiers_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_UPPER_TIERS_H_
