// Judgements about the link: what was measured, what holds it down, what the run needs of it.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_LINK_CHECKS_H_
#define CAUSEWAY_WORKER_PREFLIGHT_LINK_CHECKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/probe.pb.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/socket_buffers.h"
#include "worker/preflight/check_result.h"
#include "worker/preflight/link_rate.h"

namespace causeway::worker {

CheckResult JudgeRate(Direction direction, const absl::StatusOr<LinkRate>& rate);

// The buffers of both ends against what was measured. `here` may be an error: then the kernel does
// not say.
CheckResult JudgeBuffers(const absl::StatusOr<SocketBuffers>& here, const v1::EchoResponse& echo,
                         const LinkRate& up, const LinkRate& down, absl::Duration rtt);

// `here` and `there` are the congestion controls of the two ends of our connections; `bbr` is
// whether this process may use BBR.
CheckResult JudgeCongestionControl(const std::string& here, const std::string& there,
                                   const absl::Status& bbr, absl::Duration rtt);

// One worker's exchange of every fragment in steps_between_syncs steps.
struct LinkNeed {
  int steps_between_syncs = 1;
  int overlap_steps = 0;
  std::vector<double> up_bytes;    // By fragment.
  std::vector<double> down_bytes;  // By fragment.
  double state_bytes = 0;          // To begin with: the published values.
};
// `config` complete, `plan` made from it.
absl::StatusOr<LinkNeed> LinkNeedOf(const v1::RunConfig& config, const FragmentPlan& plan);

struct LinkForecast {
  double up_bytes_per_second = 0;  // Needed on average, while steps take step_time.
  double down_bytes_per_second = 0;
  double headroom = 0;             // The link's rate over that, of the tighter direction.
  absl::Duration least_step_time;  // With shorter steps the link would be what limits training.
  double utilization = 0;          // Time that computes over all time, at most 1.
  absl::Duration join_time;        // For the published values.
};
// Rates in bytes per second, above 0, as is step_time. A fragment that is sent after a step comes
// back when it has gone up, been merged and come down; what of that lasts longer than the overlap
// is waited for. Entropy coding, which saves some, is left out.
LinkForecast Forecast(const LinkNeed& need, double up_rate, double down_rate, absl::Duration rtt,
                      absl::Duration step_time);

// `estimated` says whether step_time was given or guessed from the rate of matrix products.
CheckResult JudgeForecast(const LinkForecast& forecast, absl::Duration step_time, bool estimated);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_LINK_CHECKS_H_
