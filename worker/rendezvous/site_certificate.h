// A site's own certificate: all its processes make the same one from their secret, show it, and
// trust no other.
#ifndef CAUSEWAY_WORKER_RENDEZVOUS_SITE_CERTIFICATE_H_
#define CAUSEWAY_WORKER_RENDEZVOUS_SITE_CERTIFICATE_H_

#include <string>

#include "absl/status/statusor.h"

namespace causeway::worker {

// The DNS name in it, whatever the machine is called.
inline constexpr char kSiteName[] = "site";

struct SiteCertificate {
  std::string certificate;  // PEM; signed by itself.
  std::string key;          // PEM.
};

// A function of the secret alone. Takes a tenth of a second, so that guessing takes long.
absl::StatusOr<SiteCertificate> MakeSiteCertificate(const std::string& secret);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_RENDEZVOUS_SITE_CERTIFICATE_H_
