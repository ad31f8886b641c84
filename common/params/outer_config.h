// The part of the configuration that says how a round's deltas become one step: CompleteRunConfig
// calls these.
#ifndef CAUSEWAY_COMMON_PARAMS_OUTER_CONFIG_H_
#define CAUSEWAY_COMMON_PARAMS_OUTER_CONFIG_H_

#include "absl/status/status.h"
#include "causeway/v1/config.pb.h"
#include "common/params/run_config.h"

namespace causeway {

// A round of fewer contributions has no values to spare: TRIMMED_MEAN takes all of them.
inline constexpr int kFewestToTrim = 5;

// Fills in `outer`'s defaults and checks it. `train` is complete. INVALID_ARGUMENT as
// CompleteRunConfig.
absl::Status CompleteOuter(const v1::TrainConfig& train, v1::OuterConfig& outer);

// Checks that rounds of these members can be merged so; both are complete. INVALID_ARGUMENT
// likewise.
absl::Status CheckMergeRule(const v1::OuterConfig& outer, const v1::MembershipConfig& membership);

// Adds what such a merge does not do.
void AddMergeWarnings(const v1::OuterConfig& outer, const v1::MembershipConfig& membership,
                      ConfigWarnings& warnings);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_PARAMS_OUTER_CONFIG_H_
