// A limit on what one worker sends, for links that it shares with others.
#ifndef CAUSEWAY_WORKER_LINK_RATE_LIMITER_H_
#define CAUSEWAY_WORKER_LINK_RATE_LIMITER_H_

#include <cstdint>

#include "absl/time/time.h"

namespace causeway::worker {

// A bucket of credit that fills at the rate and may be overdrawn by one piece: whoever takes the
// last credit may send a whole chunk, and the next one waits until that is paid for. Time comes
// with every call. Not thread-safe.
class RateLimiter {
 public:
  // 0: no limit.
  explicit RateLimiter(int64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // How long until something may be sent.
  absl::Duration Wait(absl::Duration now);
  // So much is sent now.
  void Spend(int64_t bytes) { credit_ -= static_cast<double>(bytes); }

 private:
  const int64_t bytes_per_second_;
  double credit_ = 0;
  absl::Duration filled_ = -absl::InfiniteDuration();
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_RATE_LIMITER_H_
