// A run's own authority, and what members ask it for. Texts are PEM; nothing here touches a file.
//
// Keys are EC P-256. A member makes its key on its own machine, and shows the authority a request
// (PKCS #10); the authority decides what stands in the certificate.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/identity/certificate.h"
#include "common/identity/identity.h"

namespace causeway {

// The DNS name in every certificate of a coordinator that its own authority has made: members look
// for it, and not for an address, which may change. The authority vouches for nobody else by it.
inline constexpr char kCoordinatorName[] = "coordinator.causeway";

struct KeyedCertificate {
  std::string certificate;
  std::string key;
};

// An authority that signs itself, with a new key, for ten years. INTERNAL where OpenSSL fails.
absl::StatusOr<KeyedCertificate> MakeAuthority(absl::string_view run_name, absl::Time now);

absl::StatusOr<std::string> MakePrivateKey();
// The request of who has the key. INVALID_ARGUMENT names `key_file`.
absl::StatusOr<std::string> MakeRequest(absl::string_view key, const std::string& key_file);

// What stands in a certificate: the identity of a member, or the names of a coordinator.
struct Issue {
  CertificateUse use = CertificateUse::kClient;
  std::string common_name;
  std::vector<std::string> names;  // As OpenSSL writes them: "URI:causeway://...", "DNS:host".
  absl::Time begin, end;
};
Issue IssueTo(const Identity& identity, absl::Time begin, absl::Time end);

// A certificate for the key of `request`, in front of `authority.certificate`. INVALID_ARGUMENT:
// the request is no such text, is not signed by its own key, or its key is not one of P-256.
// `authority.certificate` begins with the one of `authority.key`; others up to a root may follow.
absl::StatusOr<std::string> SignRequest(const KeyedCertificate& authority,
                                        absl::string_view request, const Issue& issue);

// SHA-256 of the request's public key in hexadecimal; the errors of SignRequest.
absl::StatusOr<std::string> KeyOfRequest(absl::string_view request);

// A certificate that signs itself and is a function of the arguments alone: whoever knows the
// secret makes the same one, shows it, and trusts it. Ed25519. Of a `secret` that a person chose it
// takes a tenth of a second (scrypt), so that guessing takes long. `names` as in Issue.
absl::StatusOr<KeyedCertificate> CertificateOfSecret(absl::string_view secret,
                                                     const std::string& purpose,
                                                     const std::string& names);

// The last certificate of a PEM text, alone: the one that others are traced back to.
absl::StatusOr<std::string> LastCertificate(absl::string_view pem, const std::string& file);

}  // namespace causeway
