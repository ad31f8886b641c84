#include "common/identity/expiry_watch.h"

#include "absl/strings/str_cat.h"

namespace causeway {

std::string ExpiryWatch::Poll() {
  const absl::Duration now = clock_.Monotonic();
  if (file_.empty() || now < next_look_) return "";
  next_look_ = now + absl::Hours(1);
  if (now < next_warning_) return "";
  const absl::StatusOr<Certificate> certificate = ReadCertificate(file_);
  const std::string warning =
      certificate.ok()
          ? ExpiryWarning(*certificate, file_, clock_.Now(), renewal_)
          : absl::StrCat(certificate.status().message(),
                         ": until it can be read, new connections go on with the one before");
  if (!warning.empty()) next_warning_ = now + absl::Hours(24);
  return warning;
}

}  // namespace causeway
