// The line by which a site boards a run, once:
//
//   causeway://HOST:PORT[,HOST:PORT...]/RUN/NAME/PIN.SECRET
//
// PIN is the SHA-256 of the authority's certificate (DER), SECRET 32 random bytes and a check of
// the line, both in base64 for URLs. Nothing in it needs quotes in a shell but the brackets of an
// IPv6 address.
//
// The secret is never sent, and the coordinator never has it. Both who invites and who is invited
// make the same certificate of it (CertificateOfSecret): the coordinator is told that certificate,
// and who shows it over TLS, to the authority of the line alone, gets one under the name of the
// line in exchange.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/identity/authority.h"

namespace causeway {

inline constexpr size_t kInvitationSecretBytes = 32;

struct InvitationLine {
  std::vector<std::string> addresses;  // HOST:PORT.
  std::string run;
  std::string name;
  std::string pin;     // SHA-256 of the authority, as Certificate::fingerprint.
  std::string secret;  // kInvitationSecretBytes.

  bool operator==(const InvitationLine&) const = default;
};

// With the first 16 of its addresses: no line has more.
std::string FormatInvitation(InvitationLine line);
// INVALID_ARGUMENT says what is wrong with the line, and shows nothing of its secret.
absl::StatusOr<InvitationLine> ParseInvitation(absl::string_view text);
// Whether it means to be one.
bool LooksLikeInvitation(absl::string_view text);

absl::StatusOr<std::string> MakeInvitationSecret();

// 16 hexadecimal digits by which a secret is known again, and not found out.
std::string ShortDigest(absl::string_view secret);

// What the invited shows; its identity is causeway://*/invited/NAME.
absl::StatusOr<KeyedCertificate> CertificateOfInvitation(const std::string& secret,
                                                         const std::string& name);

// The one certificate of the text, encoded anew, if it is such a one: of that name alone, signed by
// itself, of Ed25519, and no authority. INVALID_ARGUMENT.
absl::StatusOr<std::string> CheckInvitationCertificate(absl::string_view pem,
                                                       const std::string& name);

// Files that a member keeps on its own machine once it has boarded a run (invitation.h).

struct IdentityFiles {
  explicit IdentityFiles(const std::string& folder)
      : authority(JoinPath(folder, "ca.pem")),
        certificate(JoinPath(folder, "cert.pem")),
        key(JoinPath(folder, "key.pem")),
        coordinator(JoinPath(folder, "coordinator")) {}
  std::string authority, certificate, key;
  std::string coordinator;  // HOST:PORT,... and the end of the line.
};

// The folder of a run's member: $XDG_CONFIG_HOME/causeway/RUN/NAME, or ~/.config/causeway/RUN/NAME.
// FAILED_PRECONDITION without either.
absl::StatusOr<std::string> DefaultIdentityFolder(absl::string_view run, absl::string_view name);

// With its parents, for this user alone as far as they are made. FAILED_PRECONDITION: the folder is
// there, and others may look into it.
absl::Status CreatePrivateFolder(FileSystem& file_system, const std::string& folder);
// As WriteFileAtomically, for this user alone.
absl::Status WritePrivateFile(FileSystem& file_system, const std::string& path,
                              absl::string_view text);

}  // namespace causeway
