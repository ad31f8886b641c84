// Pauses between tries, and the word for a call that this side gave up.
#ifndef CAUSEWAY_WORKER_LINK_RETRY_H_
#define CAUSEWAY_WORKER_LINK_RETRY_H_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace causeway::worker {

// A transfer that arrives damaged twice without any progress is not a passing fault.
inline constexpr int kMaxDamaged = 2;

// Before the next try, after so many failures in a row, 1 or more.
inline absl::Duration BackOff(int failures) {
  return std::min(absl::Milliseconds(200) * (int64_t{1} << std::min(failures - 1, 10)),
                  absl::Seconds(5));
}

// Patience grows with every stall of one transfer: over a link so slow that a chunk takes longer
// than the limit, it gets through in the end.
inline absl::Duration Patience(absl::Duration limit, int stalls) {
  return limit * (int64_t{1} << std::min(stalls, 4));
}

inline absl::Status ExchangeCancelled() {
  return absl::CancelledError("the exchange was cancelled");
}

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_LINK_RETRY_H_
