// Time as an argument, so that tests own it.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace causeway {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for records that people read. May jump.
  virtual absl::Time Now() const = 0;
  // Time since an arbitrary start; never goes back. For leases, deadlines and rates.
  virtual absl::Duration Monotonic() const = 0;

  // The machine's clock; lives for ever.
  static Clock* Real();
};

inline Clock* Clock::Real() {
  class RealClock final : public Clock {
   public:
    absl::Time Now() const override { return absl::Now(); }
    absl::Duration Monotonic() const override {
      return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
    }
  };
  static RealClock clock;
  return &clock;
}

}  // namespace causeway
