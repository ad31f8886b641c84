#include "server/access/refused_identities.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace causeway::server {
namespace {

std::string Key(absl::string_view role, absl::string_view name) {
  return absl::StrCat(role, "/", name);
}

constexpr char kCertificate[] = "certificate";
constexpr size_t kFingerprintDigits = 64;

// In the form of Certificate::fingerprint; empty if it is none.
std::string ParseFingerprint(absl::string_view text) {
  std::string digits = absl::AsciiStrToLower(absl::StrReplaceAll(text, {{":", ""}}));
  const bool is_one =
      digits.size() == kFingerprintDigits && std::all_of(digits.begin(), digits.end(), [](char c) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
      });
  return is_one ? digits : "";
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
                         kFingerprintDigits, " hexadecimal digits"));
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
