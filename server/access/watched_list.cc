#include "server/access/watched_list.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace causeway::server {
namespace {

constexpr size_t kHashDigits = 2 * SHA256_DIGEST_LENGTH;
constexpr char kNobody[] = "nobody";
constexpr char kUnknownToken[] =
    "the token is unknown or was revoked: ask the coordinator's operator for a new one "
    "(deploy/make_certificates token)";

bool IsHash(absl::string_view text) {
  return text.size() == kHashDigits && std::ranges::all_of(text, [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

absl::StatusOr<TokenEntry> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() != 3 || !IsHash(words[0])) {
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
  std::set<TokenHash> seen;
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

namespace {

std::string Key(absl::string_view role, absl::string_view name) {
  return absl::StrCat(role, "/", name);
}

constexpr char kCertificate[] = "certificate";

// In the form of Certificate::fingerprint; empty if it is none.
std::string ParseFingerprint(absl::string_view text) {
  std::string digits = absl::AsciiStrToLower(absl::StrReplaceAll(text, {{":", ""}}));
  return IsHash(digits) ? digits : "";
}

// "sha256 Fingerprint=AA:BB..", as openssl prints it, becomes "certificate AA:BB..".
void DropOpenSslWords(std::vector<absl::string_view>& words) {
  constexpr absl::string_view kPrefix = "Fingerprint=";
  const size_t first = words[0] == kCertificate ? 1 : 0;
  if (words.size() != first + 2 || !absl::EqualsIgnoreCase(words[first], "sha256") ||
      !absl::StartsWithIgnoreCase(words[first + 1], kPrefix)) {
    return;
  }
  words = {kCertificate, words[first + 1].substr(kPrefix.size())};
}

}  // namespace

absl::StatusOr<std::set<std::string>> ParseRefused(absl::string_view text,
                                                   const std::string& file) {
  std::set<std::string> refused;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    DropOpenSslWords(words);
    const bool is_role =
        words[0] == RoleName(Role::kWorker) || words[0] == RoleName(Role::kRegion) ||
        words[0] == RoleName(Role::kOperator) || words[0] == RoleName(Role::kObserver);
    if (words.size() == 2 && words[0] == kCertificate) {
      const std::string fingerprint = ParseFingerprint(words[1]);
      if (fingerprint.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ", line ", number, ": expected the SHA-256 of a certificate in ",
                         kHashDigits, " hexadecimal digits"));
      }
      refused.insert(Key(kCertificate, fingerprint));
      continue;
    }
    if (words.size() != 2 || !is_role) {
      return absl::InvalidArgumentError(absl::StrCat(
          file, ", line ", number, ": expected a role and a name, such as \"worker site-a\", or ",
          "\"certificate\" and its SHA-256"));
    }
    refused.insert(Key(words[0], words[1]));
  }
  return refused;
}

RefusedIdentities::RefusedIdentities(const std::string& file, const Clock* clock)
    : list_(file, ParseRefused, clock, /*may_be_empty=*/true, "identities are refused now") {}

absl::StatusOr<std::unique_ptr<RefusedIdentities>> RefusedIdentities::Open(const std::string& file,
                                                                           const Clock* clock) {
  std::unique_ptr<RefusedIdentities> refused(new RefusedIdentities(file, clock));
  RETURN_IF_ERROR(refused->list_.Open());
  return refused;
}

absl::Status RefusedIdentities::Check(const Identity& identity, const std::string& fingerprint) {
  const auto seen = list_.Look();
  const std::string certificate = fingerprint.empty() ? "" : Key(kCertificate, fingerprint);
  const std::string name = Key(RoleName(identity.role), identity.name);
  if (!certificate.empty() && seen.list->contains(certificate)) {
    return absl::UnauthenticatedError(absl::StrCat(
        "this certificate of ", RoleAndName(identity),
        " is refused by the coordinator's operator (--refused_identities): ask for another one"));
  }
  if (seen.list->contains(name)) {
    return absl::UnauthenticatedError(absl::StrCat(
        RoleAndName(identity),
        " is refused by the coordinator's operator (--refused_identities): ask for another name"));
  }
  const bool was_there = std::ranges::any_of(seen.former, [&](const auto& former) {
    return former->contains(certificate) || former->contains(name);
  });
  if (!was_there && !seen.is_first) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      was_there ? absl::StrCat(RoleAndName(identity), " was refused a moment ago")
                : std::string("the coordinator's list of refused identities has just changed"),
      "; in case it is still being written, nobody is let in by it for another ",
      absl::FormatDuration(absl::Ceil(seen.settles_in, absl::Seconds(1)))));
}

}  // namespace causeway::server
