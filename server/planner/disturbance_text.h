// Reads what goes wrong, as people write it.
//
//   TIME           20s         always
//                  5s..60s     evenly between
//                  exp:20s     exponential, with that mean
//   INTERRUPTIONS  TIME/TIME   so long, so often: 20s/exp:1h, exp:5s/10m, 3s/1m
//                  TIME@TIME   once, so long after the beginning: 20s@2m
//   JITTER         0.1..1      shares of a link's rate
#ifndef CAUSEWAY_SERVER_PLANNER_DISTURBANCE_TEXT_H_
#define CAUSEWAY_SERVER_PLANNER_DISTURBANCE_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/planner/disturbances.h"

namespace causeway::server {

// Empty text: none. INVALID_ARGUMENT with an example otherwise.
absl::StatusOr<Interruptions> ParseInterruptions(absl::string_view text);

// Sets least_rate and most_rate; empty text leaves them. INVALID_ARGUMENT otherwise.
absl::Status ParseJitter(absl::string_view text, Disturbances& disturbances);

// "the coordinator away for 20s every 1h (exponential), steps that spread by 10 %".
std::string DisturbancesText(const Disturbances& disturbances);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_DISTURBANCE_TEXT_H_
