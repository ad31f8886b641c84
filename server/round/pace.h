// Dynamic local updates: how many steps of the schedule one inner step of each worker counts for,
// so that all workers come to their sends at the same time (after Decoupled DiLoCo, arXiv
// 2604.21428).
//
// The fastest worker has pace 1 and does every step. A worker whose inner steps take k times as
// long gets pace k: it does H / k inner steps between two sends of a fragment. Schedule, budget and
// learning rate stay in steps of the schedule, which every worker passes in the same time.
//
// Pure functions of their arguments.
#ifndef CAUSEWAY_SERVER_ROUND_PACE_H_
#define CAUSEWAY_SERVER_ROUND_PACE_H_

#include <cstdint>
#include <map>
#include <string>

#include "common/params/sync_schedule.h"
#include "server/round/membership.h"

namespace causeway::server {

// New paces, by worker id, of those active members whose present one no longer fits. A member
// whose speed is not known yet keeps its pace and is compared with nobody.
//
// A pace is set a little above the ratio of step times, so that it is the slow worker that waits a
// moment, not all the others. It stays while the ratio moves by -7 to +6 percent: measured times
// are noisy, and every change of pace makes the run another one. Where two orders cross, the one on
// its way counts as the present pace until the member is beyond the step it starts at.
//
// `max_pace` as membership.max_pace: 1 or less gives no paces, except 1 to those that have another.
std::map<std::string, int64_t> NewPaces(const std::map<std::string, Member>& members,
                                        double max_pace);

// The step at which a new pace starts: that of the next period of H steps, for all to see in the
// records. A worker that is beyond it when the order arrives obeys at its next inner step.
int64_t PaceStart(int64_t largest_step, int64_t steps_between_syncs);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_ROUND_PACE_H_
