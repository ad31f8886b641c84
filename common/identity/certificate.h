// Certificates and keys as files: what they say, and whether they will do before anything starts.
// gRPC would find the same faults at the first handshake, and say little about them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/identity/identity.h"

namespace causeway {

struct Certificate {
  std::string subject;  // "CN=worker/site-a", for people.
  std::vector<std::string> dns_names;
  std::vector<std::string> ip_addresses;
  std::vector<std::string> uris;
  std::string fingerprint;           // SHA-256 of its DER form, 64 hexadecimal digits.
  std::optional<Identity> identity;  // The one URI of the scheme causeway, if there is exactly one.
  absl::Time not_before;
  absl::Time not_after;
};

enum class CertificateUse { kServer, kClient };

// How long before its end a certificate is warned about.
inline constexpr absl::Duration kExpiryWarning = absl::Hours(7 * 24);

// "2026-01-31 23:59 UTC", for people.
std::string UtcMinute(absl::Time time);

// The contents of a small file that secrets or trust depend on. NOT_FOUND, PERMISSION_DENIED,
// INVALID_ARGUMENT (no plain file, empty, or beyond `max_bytes`), FAILED_PRECONDITION if everybody
// may write it or, where it is `secret`, read it. All name the file and the remedy.
absl::StatusOr<std::string> ReadTrustedFile(const std::string& file, bool secret,
                                            size_t max_bytes = 1 << 20);

// The first certificate of a PEM text or file. INVALID_ARGUMENT names the file.
absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem, const std::string& file);
absl::StatusOr<Certificate> ReadCertificate(const std::string& file);
absl::StatusOr<absl::Time> EndOfCertificate(const std::string& file);

// FAILED_PRECONDITION if `certificate` is expired, UNAVAILABLE if it is not valid yet.
absl::Status CheckValidity(const Certificate& certificate, const std::string& file, absl::Time now);

// PEM texts as they were checked: a file may change between two looks.
struct OwnCertificate {
  Certificate certificate;
  std::string chain;  // The certificate, and those between it and its authority.
  std::string key;
};

// Reads a pair of PEM files, and checks that a peer can be shown it: both parse, the key is the
// certificate's, the certificate is valid now and meant for that use.
absl::StatusOr<OwnCertificate> ReadOwnCertificate(const std::string& cert_file,
                                                  const std::string& key_file, CertificateUse use,
                                                  absl::Time now);

// The PEM text of `ca_file`, which holds at least one authority that can sign at present.
absl::StatusOr<std::string> ReadAuthorities(const std::string& ca_file, absl::Time now);

// Checks that an authority of `ca_file` stands behind the certificate, through the further ones in
// `cert_file`. FAILED_PRECONDITION gives OpenSSL's reason.
absl::Status CheckSigned(const std::string& cert_file, const std::string& ca_file,
                         CertificateUse use, absl::Time now);

// Says what to do when the end of a certificate is near, where nobody renews it by itself.
inline constexpr char kRenewedByHand[] =
    "replace it (deploy/make_certificates renew); no restart is needed";
// "the certificate F expires in 3d2h: RENEWAL", or "" while that is far away.
std::string ExpiryWarning(const Certificate& certificate, const std::string& file, absl::Time now,
                          absl::string_view renewal = kRenewedByHand);

}  // namespace causeway
