// Measures what the link to the coordinator carries, with its Probe service over as many
// connections as training would use.
//
// The rate is that of the bytes which TCP delivered in the second half of the time, when slow start
// is over on most links; what sits in buffers does not count. Where the system does not tell, it is
// that of the bytes which gRPC took or gave.
#ifndef CAUSEWAY_WORKER_PREFLIGHT_LINK_RATE_H_
#define CAUSEWAY_WORKER_PREFLIGHT_LINK_RATE_H_

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/probe.grpc.pb.h"
#include "common/client/link_meter.h"
#include "common/rpc/tcp_address.h"

namespace causeway::worker {

struct RateOptions {
  std::vector<std::shared_ptr<grpc::Channel>> channels;  // One connection each.
  std::vector<TcpAddress> peers;                         // Where they lead.
  std::string congestion_control;                        // Empty: the system's.
  absl::Duration time = absl::Seconds(3);
  // Called some times a second by the measuring thread: the time gone, and the rate lately.
  std::function<void(absl::Duration, double)> progress = nullptr;
};

struct LinkRate {
  double bytes_per_second = 0;
  int64_t bytes = 0;          // In the whole time.
  absl::Duration loaded_rtt;  // Under this load; zero if TCP does not say.
  absl::Duration min_rtt;     // The smallest that TCP saw; zero likewise.
  int64_t retransmitted_segments = 0;
  int connections = 0;
  std::string congestion_control;  // At this end.
};

// Takes options.time and up to two seconds more, whatever the other side does. The coordinator's
// errors (RESOURCE_EXHAUSTED: it measures another link, and says when to come again), or
// UNAVAILABLE if nothing went through.
absl::StatusOr<LinkRate> MeasureRate(Direction direction, const RateOptions& options);

// One call of Echo, and when.
struct EchoSample {
  v1::EchoResponse response;
  absl::Time sent;            // This machine's wall clock.
  absl::Duration round_trip;  // By a clock that does not jump.
};

// The first call has `worker_id`, and `timeout`; the others follow one after the other until there
// are `count` or two seconds are over. The first one's error if it fails.
absl::StatusOr<std::vector<EchoSample>> MeasureEcho(v1::Probe::StubInterface& stub,
                                                    const std::string& worker_id, int count,
                                                    absl::Duration timeout);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_PREFLIGHT_LINK_RATE_H_
