// The tokens that a coordinator accepts, as a file of their hashes:
//
//   # SHA-256 of the token, in hexadecimal   role   name
//   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 worker site-a
//
// Whoever reads the file learns no token. A changed file counts from the next call on: a line that
// is gone is a token that is refused. A file without a token is no list: it may be half written.
// The single line "nobody" is a list that lets nobody in.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/identity/identity.h"
#include "server/access/watched_list.h"

namespace causeway::server {

using TokenHash = std::array<uint8_t, 32>;  // SHA-256.

struct TokenEntry {
  TokenHash hash;
  Identity identity;
};

// INVALID_ARGUMENT names `file` and the line.
absl::StatusOr<std::vector<TokenEntry>> ParseTokens(absl::string_view text,
                                                    const std::string& file);

// Thread-safe. Looks at its file whenever it is asked.
class TokenTable {
 public:
  // The errors of ReadTrustedFile and ParseTokens. The clock outlives the object.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(const std::string& file,
                                                          const Clock* clock = Clock::Real());

  // The token's entry. Takes the same time whichever of the tokens it is, or none.
  // UNAUTHENTICATED: it is on no list. While the file is away, empty or malformed the last list
  // that could be read whole counts, and a token that is not on it is UNAVAILABLE. So is, for a
  // moment, one that was on a former list, or any if there is none before (watched_list.h). The log
  // says so.
  absl::StatusOr<TokenEntry> Find(absl::string_view token);
  // OK if what Find returned still stands in the file; its errors.
  absl::Status Holds(const TokenEntry& entry);

 private:
  TokenTable(const std::string& file, const Clock* clock);
  absl::StatusOr<TokenEntry> FindHash(const TokenHash& hash);

  WatchedList<std::vector<TokenEntry>> list_;
};

}  // namespace causeway::server
