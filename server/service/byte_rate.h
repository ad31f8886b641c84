// How fast something may go, on average over a short while.
#ifndef CAUSEWAY_SERVER_SERVICE_BYTE_RATE_H_
#define CAUSEWAY_SERVER_SERVICE_BYTE_RATE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace causeway::server {

// How many bytes may leave by now. Whoever takes more than there are goes into debt, which is paid
// off before the next one takes. Not thread-safe.
class ByteRate {
 public:
  // 0: none.
  void Set(int64_t bytes_per_s) { bytes_per_s_ = bytes_per_s; }

  bool Allows(absl::Duration now) {
    if (bytes_per_s_ <= 0) return true;
    const double rate = static_cast<double>(bytes_per_s_);
    const double earned = rate * absl::ToDoubleSeconds(now - refilled_);
    refilled_ = now;
    // What was not used is not saved up: a burst would fill the link's queue.
    balance_ = std::min(balance_ + earned, rate * absl::ToDoubleSeconds(kBurst));
    return balance_ > 0;
  }
  void Take(int64_t bytes) {
    if (bytes_per_s_ > 0) balance_ -= static_cast<double>(bytes);
  }

 private:
  static constexpr absl::Duration kBurst = absl::Milliseconds(50);

  int64_t bytes_per_s_ = 0;
  double balance_ = 0;
  absl::Duration refilled_ = absl::ZeroDuration();
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_BYTE_RATE_H_
