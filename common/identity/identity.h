// Who a peer is and what it may do. A certificate says so in a URI among its subject alternative
// names, a token in the coordinator's file of tokens:
//
//   causeway://RUN/ROLE/NAME     RUN is a run's name, or * for every run
//   causeway://*/worker/site-a
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway {

enum class Role {
  kObserver,  // Reads: the status and the configuration, no parameters.
  kWorker,    // Takes part, under its own worker id alone.
  kRegion,    // Takes part under its own id, as a coordinator of sites of its own.
  kOperator,  // Reads all that an observer does and the parameters, and gives orders.
  kInvited,   // Has an invitation, and may exchange it for a certificate (invitation.h).
};

inline constexpr char kEveryRun[] = "*";
inline constexpr char kIdentityScheme[] = "causeway://";

struct Identity {
  std::string run;  // A run's name, or kEveryRun.
  Role role = Role::kObserver;
  std::string name;  // A worker's is its worker id.

  bool operator==(const Identity&) const = default;
};

absl::string_view RoleName(Role role);
// "worker site-a".
std::string RoleAndName(const Identity& identity);
// INVALID_ARGUMENT lists the roles.
absl::StatusOr<Role> ParseRole(absl::string_view name);

// INVALID_ARGUMENT shows the form expected and what came.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri);
std::string IdentityUri(const Identity& identity);

// A token of at least this many characters, all printable and none a space.
inline constexpr size_t kMinTokenCharacters = 32;
inline constexpr size_t kMaxTokenCharacters = 1024;
absl::Status CheckToken(absl::string_view token);

}  // namespace causeway
