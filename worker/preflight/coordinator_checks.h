// Judgements about what the coordinator says of itself, of this site and of the run.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_COORDINATOR_CHECKS_H_
#define CAUSEWAY_WORKER_PREFLIGHT_COORDINATOR_CHECKS_H_

#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "causeway/v1/probe.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/preflight/check_result.h"
#include "worker/preflight/link_rate.h"

namespace causeway::worker {

// The first call of all: FAILED says why there is no answer, whatever the reason.
CheckResult JudgeAnswer(const std::string& address, const absl::Status& status);

// `worker_id` may be empty: then only who the coordinator takes us for.
CheckResult JudgeIdentity(const v1::EchoResponse& echo, const std::string& worker_id);

CheckResult JudgeVersion(const v1::EchoResponse& echo);

// The run as this build understands it.
struct UnderstoodRun {
  v1::RunConfig config;  // Complete.
  FragmentPlan plan;
};
// Sets `run` if the coordinator's description means to this build what it means to the coordinator.
CheckResult JudgeConfiguration(const absl::StatusOr<v1::DescribeResponse>& description,
                               std::optional<UnderstoodRun>& run);

// How far this machine's wall clock is off the coordinator's, by the sample that was quickest.
CheckResult JudgeClock(std::span<const EchoSample> samples);

// `tcp_rtt` is the smallest that TCP has measured; zero if it does not say.
CheckResult JudgeRoundTrip(std::span<const EchoSample> samples, absl::Duration tcp_rtt);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_COORDINATOR_CHECKS_H_
