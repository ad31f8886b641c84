// A limit on how many bytes leave over time.
#ifndef CAUSEWAY_COMMON_TRANSFER_BYTE_RATE_H_
#define CAUSEWAY_COMMON_TRANSFER_BYTE_RATE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace causeway {

// A bucket of credit that fills at the rate and may be overdrawn by one piece: whoever takes the
// last credit may send a whole chunk, and the next one waits until that is paid for. Time comes
// with every call. Not thread-safe.
class ByteRate {
 public:
  // 0: no limit.
  explicit ByteRate(int64_t bytes_per_second = 0) : rate_(static_cast<double>(bytes_per_second)) {}

  // Returns how long until something may be sent; zero: now.
  absl::Duration Wait(absl::Duration now) {
    if (rate_ <= 0) return absl::ZeroDuration();
    if (filled_ == -absl::InfiniteDuration()) filled_ = now;
    // A moment may be saved up, so that who wakes up a little late loses nothing.
    const double most = rate_ * absl::ToDoubleSeconds(absl::Milliseconds(50));
    credit_ = std::min(most, credit_ + rate_ * absl::ToDoubleSeconds(now - filled_));
    filled_ = now;
    return credit_ >= 0 ? absl::ZeroDuration() : absl::Seconds(-credit_ / rate_);
  }
  // Notes that so much is sent now; a negative number gives back what was spent too much.
  void Spend(int64_t bytes) { credit_ -= static_cast<double>(bytes); }

 private:
  double rate_;
  double credit_ = 0;
  absl::Duration filled_ = -absl::InfiniteDuration();
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TRANSFER_BYTE_RATE_H_
