#include "common/identity/identity.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"

namespace causeway {

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kObserver:
      return "observer";
    case Role::kWorker:
      return "worker";
    case Role::kRegion:
      return "region";
    case Role::kOperator:
      return "operator";
    case Role::kInvited:
      return "invited";
  }
  return "";
}

std::string RoleAndName(const Identity& identity) {
  return absl::StrCat(RoleName(identity.role), " ", identity.name);
}

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (const Role role :
       {Role::kObserver, Role::kWorker, Role::kRegion, Role::kOperator, Role::kInvited}) {
    if (name == RoleName(role)) return role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a role is worker, region, operator or observer; got \"",
                   absl::CHexEscape(name.substr(0, 64)), "\""));
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view uri) {
  absl::string_view rest = uri;
  const bool ours = absl::ConsumePrefix(&rest, kIdentityScheme);
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (!ours || parts.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("an identity is causeway://RUN/ROLE/NAME, for example "
                     "causeway://*/worker/site-a; got \"",
                     absl::CHexEscape(uri.substr(0, 200)), "\""));
  }
  if (parts[0] != kEveryRun) RETURN_IF_ERROR(CheckName("the identity's run", parts[0]));
  ASSIGN_OR_RETURN(const Role role, ParseRole(parts[1]));
  RETURN_IF_ERROR(CheckName("the identity's name", parts[2]));
  return Identity{std::string(parts[0]), role, std::string(parts[2])};
}

std::string IdentityUri(const Identity& identity) {
  return absl::StrCat(kIdentityScheme, identity.run, "/", RoleName(identity.role), "/",
                      identity.name);
}

absl::Status CheckToken(absl::string_view token) {
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!printable || token.size() < kMinTokenCharacters || token.size() > kMaxTokenCharacters) {
    // Never shows the token.
    return absl::InvalidArgumentError(
        absl::StrCat("a token is ", kMinTokenCharacters, " .. ", kMaxTokenCharacters,
                     " printable characters without spaces; got ", token.size(),
                     " characters; deploy/make_certificates token makes one"));
  }
  return absl::OkStatus();
}

}  // namespace causeway
