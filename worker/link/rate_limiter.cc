#include "worker/link/rate_limiter.h"

#include <algorithm>

namespace causeway::worker {
namespace {

// What may be saved up, so that who wakes up a little late loses nothing.
constexpr absl::Duration kBurst = absl::Milliseconds(50);

}  // namespace

absl::Duration RateLimiter::Wait(absl::Duration now) {
  if (bytes_per_second_ <= 0) return absl::ZeroDuration();
  const auto rate = static_cast<double>(bytes_per_second_);
  const double most = rate * absl::ToDoubleSeconds(kBurst);
  if (filled_ == -absl::InfiniteDuration()) filled_ = now;
  credit_ = std::min(most, credit_ + rate * absl::ToDoubleSeconds(now - filled_));
  filled_ = now;
  return credit_ >= 0 ? absl::ZeroDuration() : absl::Seconds(-credit_ / rate);
}

}  // namespace causeway::worker
