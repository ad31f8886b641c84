#include "server/access/token_table.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"

namespace causeway::server {
namespace {

constexpr size_t kHashBytes = SHA256_DIGEST_LENGTH;
constexpr char kNobody[] = "nobody";
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
  bool nobody = false;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (line == kNobody) {
      nobody = true;
      continue;
    }
    absl::StatusOr<TokenEntry> entry = ParseLine(line);
    if (!entry.ok()) return Annotate(entry.status(), absl::StrCat(file, ":", number));
    if (!seen.insert(entry->hash).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": this token stands further up already"));
    }
    entries.push_back(*std::move(entry));
  }
  if (nobody == entries.empty()) return entries;
  return absl::InvalidArgumentError(
      nobody ? absl::StrCat(file, " says \"", kNobody, "\", and holds ", entries.size(),
                            entries.size() == 1 ? " token" : " tokens", ": leave one of them out")
             : absl::StrCat(file, " holds no token: deploy/make_certificates token makes one; the ",
                            "line \"", kNobody, "\" is a list that lets nobody in"));
}

TokenTable::TokenTable(const std::string& file, const Clock* clock)
    : list_(file, ParseTokens, clock, /*may_be_empty=*/false, "tokens count now") {}

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
  const std::optional<TokenEntry> found = stands_in(*seen.list);
  if (found.has_value()) return *found;
  if (!seen.state.ok()) {
    return absl::UnavailableError(
        "this token was not on the coordinator's list of tokens when it could be read last, and "
        "now it cannot: try again; if that lasts, tell its operator");
  }
  const bool was_there = std::ranges::any_of(
      seen.former, [&](const auto& former) { return stands_in(*former).has_value(); });
  if (!was_there && !seen.is_first) return absl::UnauthenticatedError(kUnknownToken);
  return absl::UnavailableError(absl::StrCat(
      "this token is not on the coordinator's list of tokens", was_there ? " any more" : "",
      ", which has just changed; in case it is still being written, that is final only in ",
      absl::FormatDuration(absl::Ceil(seen.settles_in, absl::Seconds(1)))));
}

}  // namespace causeway::server
