#include "server/access/token_table.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/identity/certificate.h"
#include "common/telemetry/log.h"

namespace causeway::server {
namespace {

constexpr size_t kHashBytes = SHA256_DIGEST_LENGTH;

absl::StatusOr<TokenEntry> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  const bool is_hash = !words.empty() && words[0].size() == 2 * kHashBytes &&
                       std::all_of(words[0].begin(), words[0].end(), [](char c) {
                         return absl::ascii_isxdigit(static_cast<unsigned char>(c));
                       });
  if (!is_hash || words.size() != 3) {
    return absl::InvalidArgumentError(
        "expected the SHA-256 of a token in 64 hexadecimal digits, a role and a name");
  }
  TokenEntry entry;
  const std::string hash = absl::HexStringToBytes(words[0]);
  std::copy(hash.begin(), hash.end(), entry.hash.begin());
  ASSIGN_OR_RETURN(entry.identity, ParseIdentity(absl::StrCat(kIdentityScheme, kEveryRun, "/",
                                                              words[1], "/", words[2])));
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<TokenEntry>> ParseTokens(absl::string_view text,
                                                    const std::string& file) {
  std::vector<TokenEntry> entries;
  std::set<std::array<uint8_t, kHashBytes>> seen;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    absl::StatusOr<TokenEntry> entry = ParseLine(line);
    if (!entry.ok()) return Annotate(entry.status(), absl::StrCat(file, ":", number));
    if (!seen.insert(entry->hash).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": this token stands further up already"));
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

absl::Status TokenTable::Load() {
  // Before the file is read: what is written in between is read again.
  version_ = FileVersion::Of(file_);
  const absl::StatusOr<std::string> text = ReadTrustedFile(file_, /*secret=*/false);
  if (!text.ok()) {
    entries_.clear();
    return text.status();
  }
  ASSIGN_OR_RETURN(entries_, ParseTokens(*text, file_));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenTable>> TokenTable::Open(const std::string& file) {
  std::unique_ptr<TokenTable> table(new TokenTable(file));
  absl::MutexLock lock(&table->mutex_);
  RETURN_IF_ERROR(table->Load());
  return table;
}

void TokenTable::LoadIfChanged() {
  if (FileVersion::Of(file_) == version_) return;
  const absl::Status loaded = Load();
  if (loaded.ok()) {
    Log().info("{} has changed: {} tokens count now", file_, entries_.size());
  } else {
    Log().warn("{}; {}", std::string(loaded.message()),
               entries_.empty() ? "no token counts until it can be read"
                                : "the former tokens go on counting");
  }
}

std::optional<TokenEntry> TokenTable::FindHash(const TokenHash& hash) {
  std::optional<TokenEntry> found;
  for (const TokenEntry& entry : entries_) {
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = entry;
  }
  return found;
}

std::optional<TokenEntry> TokenTable::Find(absl::string_view token) {
  TokenHash hash;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), hash.data());
  absl::MutexLock lock(&mutex_);
  LoadIfChanged();
  return FindHash(hash);
}

bool TokenTable::Holds(const TokenEntry& entry) {
  absl::MutexLock lock(&mutex_);
  LoadIfChanged();
  const std::optional<TokenEntry> found = FindHash(entry.hash);
  return found.has_value() && found->identity == entry.identity;
}

}  // namespace causeway::server
