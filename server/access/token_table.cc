#include "server/access/token_table.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace causeway::server {
namespace {

constexpr size_t kHashBytes = SHA256_DIGEST_LENGTH;
constexpr char kUnknownToken[] =
    "the token is unknown or was revoked: ask the coordinator's operator for a new one "
    "(deploy/make_certificates token)";

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

TokenTable::TokenTable(const std::string& file, const Clock* clock)
    : list_(file, ParseTokens, clock, /*may_be_empty=*/false, "tokens count now",
            "no token is new until it can be read whole") {}

absl::StatusOr<std::unique_ptr<TokenTable>> TokenTable::Open(const std::string& file,
                                                             const Clock* clock) {
  std::unique_ptr<TokenTable> table(new TokenTable(file, clock));
  RETURN_IF_ERROR(table->list_.Open());
  return table;
}

absl::StatusOr<TokenEntry> TokenTable::Find(absl::string_view token) {
  TokenHash hash;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), hash.data());
  return FindHash(hash);
}

absl::Status TokenTable::Holds(const TokenEntry& entry) {
  ASSIGN_OR_RETURN(const TokenEntry found, FindHash(entry.hash));
  return found.identity == entry.identity ? absl::OkStatus()
                                          : absl::UnauthenticatedError(kUnknownToken);
}

absl::StatusOr<TokenEntry> TokenTable::FindHash(const TokenHash& hash) {
  const auto seen = list_.Look();
  const auto stands_in = [&hash](const std::vector<TokenEntry>& entries) {
    std::optional<TokenEntry> found;
    for (const TokenEntry& entry : entries) {
      if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = entry;
    }
    return found;
  };
  // A list that is there, but not whole, is about to be: until then the one before it counts. One
  // that is away says nothing of anybody.
  const bool is_there = seen.state.ok() || absl::IsInvalidArgument(seen.state);
  const std::optional<TokenEntry> found = stands_in(*seen.list);
  if (found.has_value() && is_there) return *found;
  const bool may_come = std::ranges::any_of(
      seen.former, [&](const auto& former) { return stands_in(*former).has_value(); });
  if (seen.state.ok() && !may_come) return absl::UnauthenticatedError(kUnknownToken);
  return absl::UnavailableError(
      "the coordinator's list of tokens is away, or is being written, and so it cannot tell "
      "whether "
      "this token counts: try again; if that lasts, tell its operator");
}

}  // namespace causeway::server
