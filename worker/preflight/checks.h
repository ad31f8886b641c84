// Facts about a coordinator, the link to it and this site, and what they mean.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "causeway/v1/probe.grpc.pb.h"
#include "causeway/v1/probe.pb.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/client/link.h"
#include "common/client/reach.h"
#include "common/identity/certificate.h"
#include "common/params/fragment_plan.h"
#include "common/rpc/tcp_address.h"
#include "common/rpc/tcp_links.h"
#include "worker/data/dataset.h"
#include "worker/model/worker_checkpoint.h"
#include "worker/preflight/preflight.h"

namespace causeway::worker {

CheckResult JudgeWay(const Way& way);
// `server` is what TryTlsHandshake said; the site's own certificate, if it has one, is `own` of the
// file `own_file`.
CheckResult JudgeCertificates(const absl::StatusOr<Certificate>& server,
                              const std::optional<Certificate>& own, const std::string& own_file,
                              absl::Time now, absl::string_view renewal = kRenewedByHand);

// Measures what the link to the coordinator carries, with its Probe service over as many
// connections as training would use.
//
// The rate is that of the bytes which TCP delivered in the second half of the time, when slow start
// is over on most links; what sits in buffers does not count. Where the system does not tell, it is
// that of the bytes which gRPC took or gave.

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

// Judgements about what the coordinator says of itself, of this site and of the run.

// The first call of all: FAILED says why there is no answer, whatever the reason.
CheckResult JudgeAnswer(const std::string& address, const absl::Status& status);

// `worker_id` may be empty: then only who the coordinator takes us for.
CheckResult JudgeIdentity(const v1::EchoResponse& echo, const std::string& worker_id);

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

// Judgements about the link: what was measured, what holds it down, what the run needs of it.

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
LinkNeed LinkNeedOf(const v1::RunConfig& config, const FragmentPlan& plan);

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

// Checks of the site itself: disk, memory, processors, data. Everything is read through the
// FileSystem seam, /proc included.

// Bytes of a checkpoint of this run, and of all memory that training it takes on a CPU; both to
// within a tenth or so.
int64_t CheckpointBytes(const UnderstoodRun& run);
int64_t MemoryBytes(const UnderstoodRun& run);

// --- Disk ---
struct DiskFacts {
  std::string folder;   // The output folder, or its nearest parent that exists.
  bool exists = false;  // The output folder itself.
  uint64_t free_bytes = 0;
  double write_bytes_per_second = 0;  // Written and synced.
  absl::Duration sync_time;           // Time of the last sync, after nearly nothing was written.
};
// Writes up to 64 MiB for at most two seconds and removes them again. Errors of the file system;
// FAILED_PRECONDITION if another process uses the folder.
absl::StatusOr<DiskFacts> MeasureDisk(FileSystem& file_system, const Clock& clock,
                                      const std::string& output);
// `checkpoint_bytes` is 0 if the run is not known.
CheckResult JudgeDisk(const std::string& output, const absl::StatusOr<DiskFacts>& disk,
                      int64_t checkpoint_bytes);

// A checkpoint that is in the output folder already; `worker_id` may be empty.
CheckResult JudgeCheckpoint(const std::string& path,
                            const absl::StatusOr<WorkerCheckpoint>& checkpoint,
                            const std::string& run_id, const std::string& worker_id);

// --- Memory ---
// Bytes that this process may still take: by /proc/meminfo and its control groups.
// NOT_FOUND where the kernel does not say. `root` is "" but for tests.
absl::StatusOr<int64_t> AvailableMemory(FileSystem& file_system, const std::string& root = "");
CheckResult JudgeMemory(int64_t needed_bytes, const absl::StatusOr<int64_t>& available_bytes);

// --- Devices ---
struct DeviceFacts {
  int cores = 1;             // That the system has for this process.
  double core_limit = 0;     // By the control groups' quotas; 0: none.
  int threads = 1;           // That training would use.
  std::string instructions;  // VectorInstructions.
  bool has_gpu = false;      // There is one,
  bool uses_gpus = false;    // and training takes it: this build can.
  double matrix_flops_per_second = 0;
};
// Without the rate of matrix products and whether GPUs are used, which the caller knows.
DeviceFacts FindDevices(FileSystem& file_system, int threads, const std::string& root = "");
CheckResult JudgeDevices(const DeviceFacts& devices);
// Guesses the time of an inner step: products at the measured rate, and the rest as on the machines
// of docs/results.md.
absl::Duration GuessStepTime(const UnderstoodRun& run, const DeviceFacts& devices);

// --- Data ---
// `run` is null if it is not known: then only that the shards can be read. `shared_fingerprint` is
// that of the data which the run's workers share, 0 if it is not known or the site trains on its
// own
// (`own_data`).
CheckResult JudgeData(const absl::StatusOr<Dataset>& data, const UnderstoodRun* run,
                      uint64_t shared_fingerprint, bool own_data);

}  // namespace causeway::worker
