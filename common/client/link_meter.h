// Measures what the link to the coordinator carries, in both directions: for heartbeats, the
// summary, and the choice of how many connections to use.
#ifndef CAUSEWAY_COMMON_CLIENT_LINK_METER_H_
#define CAUSEWAY_COMMON_CLIENT_LINK_METER_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "causeway/v1/session.pb.h"
#include "common/base/clock.h"

namespace causeway {

enum class Direction { kUp = 0, kDown = 1 };

// Thread-safe.
class LinkMeter {
 public:
  // The clock outlives the meter.
  explicit LinkMeter(const Clock* clock) : clock_(clock) {}

  // Bytes that crossed while at least one object was under way, since the last sample.
  struct Sample {
    int64_t bytes = 0;
    absl::Duration time;
  };

  // An object gets under way: its first bytes may flow.
  void Begin(Direction direction);
  void Add(Direction direction, int64_t bytes);
  // It is whole, or given up, which `whole` says.
  Sample End(Direction direction, bool whole);

  void AddResent(int64_t chunks);
  void AddResume();
  // An object was ready, and no connection took it.
  void AddBlocked(absl::Duration time);

  int64_t bytes(Direction direction) const;
  // Smoothed; 0: not known yet.
  double goodput_bytes_per_second(Direction direction) const;
  // Fills in what the meter knows of.
  void Report(v1::LinkReport& report) const;

 private:
  struct Way {
    int64_t bytes = 0;
    double goodput = 0;
    int under_way = 0;
    // Since the last sample.
    int64_t sample_bytes = 0;
    absl::Duration sample_time = absl::ZeroDuration();
    absl::Duration busy_since;  // While objects are under way.
  };

  Way& way(Direction direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ways_[static_cast<size_t>(direction)];
  }

  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::array<Way, 2> ways_ ABSL_GUARDED_BY(mutex_);
  int64_t resent_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t resumes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration blocked_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CLIENT_LINK_METER_H_
