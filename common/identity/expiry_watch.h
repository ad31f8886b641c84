// Reminds of the end of a certificate while a process runs for weeks.
#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/identity/certificate.h"

namespace causeway {

// Not thread-safe.
class ExpiryWatch {
 public:
  // `cert_file` is empty where there is no certificate. The clock outlives the object. `renewal`:
  // as for ExpiryWarning.
  ExpiryWatch(std::string cert_file, const Clock& clock, std::string renewal = kRenewedByHand)
      : file_(std::move(cert_file)), clock_(clock), renewal_(std::move(renewal)) {}

  // A line for the log, or "": once a day while the certificate is near its end (ExpiryWarning) or
  // cannot be read. Looks at the file once an hour at most, so that it may be called at any rate.
  std::string Poll();

 private:
  const std::string file_;
  const Clock& clock_;
  const std::string renewal_;
  // The process warned when it started, so the first day needs no second warning.
  absl::Duration next_look_ = absl::Hours(1) + clock_.Monotonic();
  absl::Duration next_warning_ = absl::Hours(24) + clock_.Monotonic();
};

}  // namespace causeway
