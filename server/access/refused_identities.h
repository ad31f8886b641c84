// Who is refused though an authority or a token vouches for him: a file with one a line, "worker
// site-a", "operator alice", or a single certificate by the SHA-256 that `openssl x509 -noout
// -fingerprint -sha256` prints, "certificate 3A:F0:...". What follows # is a comment.
#ifndef CAUSEWAY_SERVER_ACCESS_REFUSED_IDENTITIES_H_
#define CAUSEWAY_SERVER_ACCESS_REFUSED_IDENTITIES_H_

#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_version.h"
#include "common/identity/identity.h"

namespace causeway::server {

// INVALID_ARGUMENT names `file` and the line. "worker/site-a", "certificate/3af0..." and so on.
absl::StatusOr<std::set<std::string>> ParseRefused(absl::string_view text, const std::string& file);

// Thread-safe. Looks at its file whenever it is asked.
class RefusedIdentities {
 public:
  // The errors of ReadTrustedFile and ParseRefused.
  static absl::StatusOr<std::unique_ptr<RefusedIdentities>> Open(const std::string& file);

  // UNAUTHENTICATED for who is on the list, by name or by the certificate
  // (Certificate::fingerprint; empty: he has shown none). UNAVAILABLE for everybody as long as the
  // file that there was cannot be read or understood, which the log says.
  absl::Status Check(const Identity& identity, const std::string& fingerprint);

 private:
  explicit RefusedIdentities(std::string file) : file_(std::move(file)) {}
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string file_;
  absl::Mutex mutex_;
  FileVersion version_ ABSL_GUARDED_BY(mutex_);
  absl::Status readable_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_ACCESS_REFUSED_IDENTITIES_H_
