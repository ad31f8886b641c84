// The tokens that a coordinator accepts, as a file of their hashes:
//
//   # SHA-256 of the token, in hexadecimal   role   name
//   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 worker site-a
//
// Whoever reads the file learns no token. A changed file counts from the next call on: a line that
// is gone is a token that is refused.
#ifndef CAUSEWAY_SERVER_ACCESS_TOKEN_TABLE_H_
#define CAUSEWAY_SERVER_ACCESS_TOKEN_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_version.h"
#include "common/identity/identity.h"

namespace causeway::server {

using TokenHash = std::array<uint8_t, 32>;  // SHA-256.

struct TokenEntry {
  TokenHash hash;
  Identity identity;
};

// INVALID_ARGUMENT names `file` and the line.
absl::StatusOr<std::vector<TokenEntry>> ParseTokens(absl::string_view text,
                                                    const std::string& file);

// Thread-safe.
class TokenTable {
 public:
  // The errors of ReadTrustedFile and ParseTokens.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(const std::string& file);

  // The token's entry. Takes the same time whichever of the tokens it is, or none.
  // After a change of the file that makes it malformed the former tokens go on counting; when it is
  // gone or cannot be read, none does. The log says so.
  std::optional<TokenEntry> Find(absl::string_view token);
  // Whether what Find returned still stands in the file.
  bool Holds(const TokenEntry& entry);

 private:
  explicit TokenTable(std::string file) : file_(std::move(file)) {}
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoadIfChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<TokenEntry> FindHash(const TokenHash& hash) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string file_;
  absl::Mutex mutex_;
  FileVersion version_ ABSL_GUARDED_BY(mutex_);
  std::vector<TokenEntry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_ACCESS_TOKEN_TABLE_H_
