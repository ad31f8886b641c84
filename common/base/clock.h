// Time as an argument, so that tests own it.
#pragma once

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

}  // namespace causeway
