// Lists in files that their operator changes while they are used: which tokens count, and who is
// refused.
//
// `cp` and `scp` empty a file before they write it, and editors may take it away for a moment. So
// the last list that could be read whole counts until the next one. What a changed list says is
// final only once the file has been as it is for a while: until then who was on the one before, and
// is not on this one, may be about to come. At the start nobody knows who was on the one before, so
// anybody may.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/identity/certificate.h"
#include "common/identity/identity.h"
#include "common/telemetry/log.h"

namespace causeway::server {

// For so long after it was seen to change a list may be one that is being written.
inline constexpr absl::Duration kListSettles = kFileSettles;

// Thread-safe.
template <typename List>
class WatchedList {
 public:
  // INVALID_ARGUMENT for a text that is no whole list.
  using Parse = absl::StatusOr<List> (*)(absl::string_view text, const std::string& file);

  struct Seen {
    std::shared_ptr<const List> list;  // The last one that could be read whole.
    // Those before it, as long as it may be a part of a list that is being written.
    std::vector<std::shared_ptr<const List>> former;
    bool is_first = false;  // There is none before it, and it may be such a part.
    absl::Duration settles_in = absl::ZeroDuration();  // For so long yet.
    // NOT_FOUND and the other errors of ReadTrustedFile; INVALID_ARGUMENT if the file, as it is, is
    // no whole list.
    absl::Status state;
  };

  // may_be_empty: a file of no bytes is a whole list. `counts` ends the lines of the log about a
  // list that has changed: "27 tokens count now". The clock outlives the list.
  WatchedList(std::string file, Parse parse, const Clock* clock, bool may_be_empty,
              std::string counts)
      : file_(std::move(file)),
        parse_(parse),
        clock_(clock),
        may_be_empty_(may_be_empty),
        counts_(std::move(counts)) {}

  // The first time: the errors of ReadTrustedFile and of parsing, as PassesIfJustWritten says.
  absl::Status Open() {
    absl::MutexLock lock(&mutex_);
    seen_.is_first = FileVersion::Of(file_).JustWritten(clock_->Now());
    if (seen_.is_first) changed_ = clock_->Monotonic();
    Load();
    if (seen_.list != nullptr) return absl::OkStatus();
    return PassesIfJustWritten(seen_.state, {file_}, clock_->Now());
  }

  // Looks at the file, and reads it if it has changed.
  Seen Look() {
    absl::MutexLock lock(&mutex_);
    const bool changed = FileVersion::Of(file_) != version_;
    if (changed) changed_ = clock_->Monotonic();
    const bool settled = clock_->Monotonic() - changed_ >= kListSettles;
    if (changed || (settled && unfinished_)) {
      Load();
      if (seen_.state.ok()) {
        Log().info("{} has changed: {} {}", file_, seen_.list->size(), counts_);
      } else {
        Log().warn("{}. Until the list can be read whole, the one before counts: {} {}",
                   std::string(seen_.state.message()), seen_.list->size(), counts_);
      }
    }
    if (settled && seen_.state.ok()) {
      seen_.former.clear();
      seen_.is_first = false;
    }
    seen_.settles_in =
        settled ? absl::ZeroDuration() : kListSettles - (clock_->Monotonic() - changed_);
    return seen_;
  }

 private:
  void Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool first = seen_.list == nullptr;
    unfinished_ = false;
    // Before the file is read: what is written in between is read again.
    version_ = FileVersion::Of(file_);
    const absl::StatusOr<std::string> text = version_.size == 0 && may_be_empty_
                                                 ? absl::StatusOr<std::string>(std::string())
                                                 : ReadTrustedFile(file_, /*secret=*/false);
    seen_.state = text.status();
    if (!text.ok()) return;
    absl::StatusOr<List> list = parse_(*text, file_);
    seen_.state = list.status();
    if (!list.ok()) return;
    if (!text->empty() && text->back() != '\n' && clock_->Monotonic() - changed_ < kListSettles) {
      unfinished_ = true;
      seen_.state =
          absl::InvalidArgumentError(absl::StrCat(file_, ": its last line has no end yet"));
      if (!first) return;
      // Its whole lines count at once.
      list = parse_(text->substr(0, text->rfind('\n') + 1), file_);
      if (!list.ok()) list = List();
    }
    if (!first) seen_.former.push_back(std::move(seen_.list));
    seen_.list = std::make_shared<const List>(*std::move(list));
  }

  const std::string file_;
  const Parse parse_;
  const Clock* const clock_;
  const bool may_be_empty_;
  const std::string counts_;
  absl::Mutex mutex_;
  FileVersion version_ ABSL_GUARDED_BY(mutex_);
  absl::Duration changed_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
  bool unfinished_ ABSL_GUARDED_BY(mutex_) = false;  // It parses, but its last line has no end.
  Seen seen_ ABSL_GUARDED_BY(mutex_);
};

// The tokens that a coordinator accepts, as a file of their hashes:
//
//   # SHA-256 of the token, in hexadecimal   role   name
//   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 worker site-a
//
// Whoever reads the file learns no token. A changed file counts from the next call on: a line that
// is gone is a token that is refused. A file without a token is no list: it may be half written.
// The single line "nobody" is a list that lets nobody in.

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
  // moment, one that was on a former list, or any if there is none before (see above). The log
  // says so.
  absl::StatusOr<TokenEntry> Find(absl::string_view token);
  // OK if what Find returned still stands in the file; its errors.
  absl::Status Holds(const TokenEntry& entry);

 private:
  TokenTable(const std::string& file, const Clock* clock);
  absl::StatusOr<TokenEntry> FindHash(const TokenHash& hash);

  WatchedList<std::vector<TokenEntry>> list_;
};

// Who is refused though an authority or a token vouches for him: a file with one a line, "worker
// site-a", "operator alice", or a single certificate by the SHA-256 that `openssl x509 -noout
// -fingerprint -sha256` prints, "certificate 3A:F0:...". What follows # is a comment.

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
  // a former list (see above). An empty file refuses nobody; while it is away or malformed,
  // which the log says, the list before counts.
  absl::Status Check(const Identity& identity, const std::string& fingerprint);

 private:
  RefusedIdentities(const std::string& file, const Clock* clock);

  WatchedList<std::set<std::string>> list_;
};

}  // namespace causeway::server
