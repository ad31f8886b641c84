#include "common/identity/expiry_watch.h"

#include "absl/strings/str_cat.h"
#include "common/identity/certificate.h"

namespace causeway {

std::string ExpiryWatch::Poll() {
  const absl::Duration now = clock_.Monotonic();
  if (file_.empty() || now < next_look_) return "";
  next_look_ = now + absl::Hours(1);
  if (now < next_warning_) return "";
  const absl::StatusOr<Certificate> certificate = ReadCertificate(file_);
  const std::string warning =
      certificate.ok() ? ExpiryWarning(*certificate, file_, clock_.Now())
                       : absl::StrCat(certificate.status().message(),
                                      ": new connections are refused until it can be read");
  if (!warning.empty()) next_warning_ = now + absl::Hours(24);
  return warning;
}

std::string ExpiryWatch::PollRenewal() {
  const absl::Duration now = clock_.Monotonic();
  if (file_.empty() || now < next_renewal_look_) return "";
  next_renewal_look_ = now + absl::Seconds(10);
  const absl::StatusOr<Certificate> certificate = ReadCertificate(file_);
  if (!certificate.ok()) return "";  // Poll says so, and the former one goes on being shown.
  const std::string seen = absl::StrCat(
      certificate->subject, " from ", absl::FormatTime(certificate->not_before), " until ",
      absl::FormatTime("%Y-%m-%d %H:%M UTC", certificate->not_after, absl::UTCTimeZone()));
  const bool is_new = !shown_.empty() && seen != shown_;
  shown_ = seen;
  if (!is_new) return "";
  return absl::StrCat(
      "the certificate in ", file_, " was renewed: new connections show it, until ",
      absl::FormatTime("%Y-%m-%d %H:%M UTC", certificate->not_after, absl::UTCTimeZone()));
}

}  // namespace causeway
