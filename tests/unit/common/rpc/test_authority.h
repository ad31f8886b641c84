// Authorities and certificates of all kinds, good and bad, for tests.
#pragma once

#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/identity/authority.h"
#include "common/rpc/security.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {

struct CertificateRequest {
  std::string common_name = "somebody";
  // As OpenSSL takes them: "DNS:localhost,URI:causeway://*/worker/a".
  std::string names = "DNS:nobody";
  CertificateUse use = CertificateUse::kClient;
  absl::Time not_before = absl::Now() - absl::Hours(1);
  absl::Time not_after = absl::Now() + absl::Hours(24 * 30);
};

using PemPair = KeyedCertificate;

// A CA with a key of its own.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "test authority");
  const std::string& pem() const { return own_.certificate; }
  PemPair Issue(const CertificateRequest& request) const;
  // A list that revokes these certificates (PEM), and the name that OpenSSL looks for it by.
  std::string RevocationList(std::span<const std::string> certificates,
                             absl::Time end = absl::Now() + absl::Hours(24)) const;
  std::string RevocationListName(int number = 0) const;

 private:
  const KeyedCertificate own_;
};

PemPair IssueServer(const TestAuthority& authority);  // For localhost and 127.0.0.1.
PemPair IssueIdentity(const TestAuthority& authority, absl::string_view uri);

// A line of a file of tokens: `token`'s hash, and who shows it ("worker a").
std::string TokenLine(const std::string& token, const std::string& who);

// A folder that goes away with the object.
class TestFolder {
 public:
  TestFolder() {}  // NOLINT(modernize-use-equals-default): constants of it are made.

  std::string path(absl::string_view name) const { return folder_.File(name); }
  // Atomically; keys and the like are for this user alone. As if it was written long ago: see
  // FileVersion::JustWritten. Returns the path.
  std::string Write(absl::string_view name, absl::string_view text) const;
  // As if it was written just now.
  std::string WriteNow(absl::string_view name, absl::string_view text) const;
  // NAME.ca, NAME.cert and NAME.key, with the options that name them.
  SecurityOptions WriteSet(absl::string_view name, absl::string_view ca, const PemPair& pair) const;

 private:
  const TemporaryFolder folder_;
};

}  // namespace causeway
