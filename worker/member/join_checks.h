// Checks of a worker before it asks to join: whom it has reached, and whether it fits.
#ifndef CAUSEWAY_WORKER_MEMBER_JOIN_CHECKS_H_
#define CAUSEWAY_WORKER_MEMBER_JOIN_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/session.pb.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/security.h"

namespace causeway::worker {

// FAILED_PRECONDITION unless the coordinator speaks this build's wire version.
absl::Status CheckWireVersion(const v1::DescribeResponse& run);

// Compares the coordinator's description with what this build computes from it: FAILED_PRECONDITION
// if they differ. Only a trainer of one's own (`any_model`) can be given another model than
// Causeway's.
absl::StatusOr<FragmentPlan> CheckRun(const v1::DescribeResponse& run, bool any_model);

// Refuses what the coordinator would refuse later, and at greater length.
absl::Status CheckIdentity(const ChannelSecurity& security, const std::string& worker_id);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_MEMBER_JOIN_CHECKS_H_
