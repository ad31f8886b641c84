// causeway.v1.Probe: what a site asks before it joins.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/access/access.h"
#include "server/core/served_run.h"

namespace causeway::server {

// Who may measure the link, and how much: a run that trains must not notice. Knows nothing of gRPC.
//
// A measurement is several streams at once, one for each connection of the site. There is one
// measurement at a time; it has a limit of bytes and of time, and all of them together have an
// allowance of time that grows back slowly.
//
// Thread-safe. Outlives the streams that it has let in.
class ProbeGate {
 public:
  // probe.proto promises the defaults.
  struct Limits {
    int streams = 16;
    int64_t bytes = int64_t{8} << 30;
    absl::Duration time = absl::Seconds(10);
    absl::Duration allowance = absl::Minutes(1);
    double share = 0.2;  // Part of the time, in the long run.
  };

  // One stream of the measurement; destroyed, it has ended. Thread-safe.
  class Stream {
   public:
    explicit Stream(ProbeGate& gate) : gate_(gate) {}
    ~Stream() { gate_.Leave(); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    // Counts bytes against the measurement. False: its bytes or its time are used up.
    bool Take(int64_t bytes) { return gate_.Take(bytes); }

   private:
    ProbeGate& gate_;
  };

  // The clock outlives the gate.
  explicit ProbeGate(const Clock& clock) : ProbeGate(clock, Limits()) {}
  ProbeGate(const Clock& clock, const Limits& limits);

  const Limits& limits() const { return limits_; }

  // Begins the measurement of that number, or adds a stream to it. `host` is who asks: another
  // host cannot take part. INVALID_ARGUMENT for the number 0; RESOURCE_EXHAUSTED says when to try
  // again.
  absl::StatusOr<std::unique_ptr<Stream>> Enter(uint64_t measurement, const std::string& host);

 private:
  bool Take(int64_t bytes);
  void Leave();
  void Refill(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const Limits limits_;
  absl::Mutex mutex_;
  absl::Duration allowance_ ABSL_GUARDED_BY(mutex_);
  absl::Duration refilled_ ABSL_GUARDED_BY(mutex_);
  // The present measurement, if streams_ is not 0.
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t measurement_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string host_ ABSL_GUARDED_BY(mutex_);
  absl::Duration start_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_left_ ABSL_GUARDED_BY(mutex_) = 0;
};

// All outlive the service.
std::unique_ptr<grpc::Service> MakeProbeService(const ServedRun& run, Access& access,
                                                ProbeGate& gate);

}  // namespace causeway::server
