// How much each contribution of a round counts.
#ifndef CAUSEWAY_SERVER_OUTER_CONTRIBUTION_WEIGHTS_H_
#define CAUSEWAY_SERVER_OUTER_CONTRIBUTION_WEIGHTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"

namespace causeway::server {

// One weight per contribution, in the order given, which does not influence them; they sum to 1
// within rounding, and a single one is exactly 1. TOKENS: in proportion to the tokens trained
// (alike, if nobody trained any); UNIFORM: alike. INVALID_ARGUMENT for a negative count, or
// counts whose sum overflows.
absl::StatusOr<std::vector<double>> ContributionWeights(std::span<const int64_t> tokens,
                                                        v1::MembershipConfig::Weighting weighting);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OUTER_CONTRIBUTION_WEIGHTS_H_
