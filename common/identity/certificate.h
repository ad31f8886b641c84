// Certificates and keys as files: what they say, and whether they will do before anything starts.
// gRPC would find the same faults at the first handshake, and say little about them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
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

// Reminds of the end of a certificate while a process runs for weeks. Not thread-safe.
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

// Looks after a folder of revocation lists (--tls_crl_dir), likewise.
//
// A list says until when it counts (nextUpdate). OpenSSL refuses every certificate of its authority
// from then on, whoever is on the list or not, and that is as it should be: nobody knows who was
// revoked since. What it has loaded it never reads again; it takes the next number of the same name
// (HASH.r1 after HASH.r0), and of several the one that counts.

// "5a2f1c3e.r0", as OpenSSL looks for the list of an authority whose name hashes to that.
bool IsRevocationListName(absl::string_view name);

// Not thread-safe.
class RevocationWatch {
 public:
  struct Notice {
    bool ended = false;  // New connections are refused; else they will be, or might be.
    std::string message;
  };

  // `folder` is empty where there are no lists. The clock outlives the object.
  RevocationWatch(std::string folder, const Clock& clock)
      : folder_(std::move(folder)), clock_(clock) {}

  // Notices that are due. A list that has ended: once an hour. A list in its last week, or in the
  // last quarter of a shorter life, and a file that does not count: once a day. Looks at the folder
  // every ten seconds at most.
  std::vector<Notice> Poll();

 private:
  // A file as it was when it was seen first, which is what OpenSSL goes on with.
  struct List {
    bool is_list = false;
    absl::Time begin;
    absl::Time end;  // InfiniteFuture if it does not say.
    FileVersion version;
  };
  static List Read(const std::string& file);
  bool IsDue(const std::string& what, absl::Duration interval);

  const std::string folder_;
  const Clock& clock_;
  absl::Duration next_look_ = -absl::InfiniteDuration();
  std::map<std::string, List> lists_;                // By the file's name.
  std::map<std::string, absl::Duration> next_said_;  // By what is said of which file.
};

}  // namespace causeway
