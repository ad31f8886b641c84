// Where a run ends whose budget is a number of tokens.
//
// All workers must stop after the same step, or the last rounds would miss some of them. The step
// is therefore announced ahead of time: late enough for the estimate to be good, early enough that
// no worker has passed it when the word arrives.
#ifndef CAUSEWAY_SERVER_ROUND_TOKEN_BUDGET_H_
#define CAUSEWAY_SERVER_ROUND_TOKEN_BUDGET_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/round/membership.h"

namespace causeway::server {

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

#endif  // CAUSEWAY_SERVER_ROUND_TOKEN_BUDGET_H_
