// Dynamic local updates: how many steps of the schedule one inner step of each worker counts for,
// so that all workers come to their sends at the same time (after Decoupled DiLoCo, arXiv
// 2604.21428).
//
// The fastest worker has pace 1 and does every step. A worker whose inner steps take k times as
// long gets pace k: it does H / k inner steps between two sends of a fragment. Schedule, budget and
// learning rate stay in steps of the schedule, which every worker passes in the same time.
//
// Pure functions of their arguments.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
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

// Where a run ends whose budget is a number of tokens.
//
// All workers must stop after the same step, or the last rounds would miss some of them. The step
// is therefore announced ahead of time: late enough for the estimate to be good, early enough that
// no worker has passed it when the word arrives.

// Tokens that all members, present and former, have reported.
int64_t TokensTrained(const std::map<std::string, Member>& members);

// The step to announce now, or nothing as long as there is time. It is the first one after which
// the workers together have trained `at_tokens`, going on at their present paces, or, if that is
// too near to be announced, the first that is not: what the fastest will do within two heartbeats
// (2/3 of the lease) lies before it.
//
// tokens_per_inner_step is what an inner step of one worker trains. 0: the trainers are not ours,
// and each member's is what its heartbeats say. Pure.
std::optional<int64_t> StopStepForTokens(const std::map<std::string, Member>& members,
                                         int64_t tokens_per_inner_step, int64_t at_tokens,
                                         absl::Duration lease);

}  // namespace causeway::server
