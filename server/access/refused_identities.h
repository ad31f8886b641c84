// Who is refused though an authority or a token vouches for him: a file with one a line, "worker
// site-a", "operator alice", or a single certificate by the SHA-256 that `openssl x509 -noout
// -fingerprint -sha256` prints, "certificate 3A:F0:...". What follows # is a comment.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/identity/identity.h"
#include "server/access/watched_list.h"

namespace causeway::server {

// INVALID_ARGUMENT names `file` and the line. "worker/site-a", "certificate/3af0..." and so on.
absl::StatusOr<std::set<std::string>> ParseRefused(absl::string_view text, const std::string& file);

// Thread-safe. Looks at its file whenever it is asked.
class RefusedIdentities {
 public:
  // The errors of ReadTrustedFile and ParseRefused. The clock outlives the object.
  static absl::StatusOr<std::unique_ptr<RefusedIdentities>> Open(
      const std::string& file, const Clock* clock = Clock::Real());

  // UNAUTHENTICATED for who is on the list that could be read last, by name or by the certificate
  // (Certificate::fingerprint; empty: he has shown none). UNAVAILABLE, for a moment, for who was on
  // a former list (watched_list.h). An empty file refuses nobody; while it is away or malformed,
  // which the log says, the list before counts.
  absl::Status Check(const Identity& identity, const std::string& fingerprint);

 private:
  RefusedIdentities(const std::string& file, const Clock* clock);

  WatchedList<std::set<std::string>> list_;
};

}  // namespace causeway::server
