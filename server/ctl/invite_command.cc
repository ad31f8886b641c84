#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/files/json.h"
#include "common/identity/invitation.h"
#include "common/params/run_config.h"
#include "server/ctl/commands.h"

ABSL_FLAG(std::string, role, "worker", "worker|region|operator|observer: what the invited may do");
ABSL_FLAG(absl::Duration, expires, absl::Hours(24), "how long the line is good for, 1m .. 720h");
ABSL_FLAG(std::string, address, "",
          "HOST:PORT,...: where the invited reach the coordinator; else where it says that it is");

namespace causeway::server {
namespace {

std::string TimeText(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixMillis(unix_ms), absl::LocalTimeZone());
}

absl::StatusOr<std::vector<std::string>> AddressesFor(const v1::InviteResponse& made) {
  const std::string given = absl::GetFlag(FLAGS_address);
  if (!given.empty()) return SplitAddresses(given);
  if (made.addresses().empty()) {
    return absl::InvalidArgumentError(
        "the coordinator knows no address that others could reach: say where it is, "
        "--address=HOST:PORT");
  }
  return std::vector<std::string>(made.addresses().begin(), made.addresses().end());
}

std::string StateOf(const v1::Invitation& invitation, int64_t now_ms) {
  if (invitation.used_unix_ms() != 0) {
    return absl::StrCat("used ", TimeText(invitation.used_unix_ms()), " from ",
                        invitation.used_at());
  }
  if (invitation.revoked_unix_ms() != 0) {
    return absl::StrCat("revoked ", TimeText(invitation.revoked_unix_ms()));
  }
  const bool over = invitation.expires_unix_ms() <= now_ms;
  return absl::StrCat(over ? "over since " : "open until ", TimeText(invitation.expires_unix_ms()));
}

}  // namespace

absl::StatusOr<std::string> InviteCommand(RunAdmin& run, const std::vector<std::string>& names,
                                          bool json, std::string& hint) {
  if (const std::string given = absl::GetFlag(FLAGS_address); !given.empty()) {
    RETURN_IF_ERROR(Annotate(SplitAddresses(given).status(), "--address"));
  }
  for (const std::string& name : names) {
    RETURN_IF_ERROR(CheckName("the name to invite", name));
    if (std::ranges::count(names, name) > 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is there twice: one line is enough"));
    }
  }
  nlohmann::json objects = nlohmann::json::array();
  std::string lines;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const std::string secret, MakeInvitationSecret());
    ASSIGN_OR_RETURN(const KeyedCertificate shown, CertificateOfInvitation(secret, name));
    v1::InviteRequest request;
    request.set_name(name);
    request.set_role(absl::GetFlag(FLAGS_role));
    request.set_seconds(absl::ToInt64Seconds(absl::GetFlag(FLAGS_expires)));
    request.set_certificate(shown.certificate);
    ASSIGN_OR_RETURN(const v1::InviteResponse made,
                     run.Call(&v1::Enrollment::Stub::Invite, request));
    ASSIGN_OR_RETURN(std::vector<std::string> addresses, AddressesFor(made));
    const std::string line = FormatInvitation({.addresses = std::move(addresses),
                                               .run = made.run_name(),
                                               .name = name,
                                               .pin = made.authority_sha256(),
                                               .secret = secret});
    absl::StrAppend(&lines, line, "\n");
    objects.push_back({{"name", name},
                       {"role", made.invitation().role()},
                       {"expires_unix_ms", made.invitation().expires_unix_ms()},
                       {"line", line}});
    hint = absl::StrCat(
        "good once, until ", TimeText(made.invitation().expires_unix_ms()),
        line.find('[') == std::string::npos ? ", by --join=LINE" : ", by --join='LINE'",
        "; a secret until then\n");
  }
  return json ? absl::StrCat(JsonText(objects, 2), "\n") : lines;
}

absl::StatusOr<std::string> InvitationsCommand(RunAdmin& run, bool json) {
  ASSIGN_OR_RETURN(const v1::ListInvitationsResponse listed,
                   run.Call(&v1::Enrollment::Stub::ListInvitations, v1::ListInvitationsRequest()));
  const int64_t now_ms = absl::ToUnixMillis(absl::Now());
  nlohmann::json objects = nlohmann::json::array();
  std::string text;
  for (const v1::Invitation& invitation : listed.invitations()) {
    const std::string state = StateOf(invitation, now_ms);
    absl::StrAppend(
        &text,
        absl::StrFormat("%-9s %-24s %s, invited %s by %s\n", invitation.role(), invitation.name(),
                        state, TimeText(invitation.created_unix_ms()), invitation.invited_by()));
    objects.push_back(MessageToJson(invitation));
    objects.back().erase("certificate");
    objects.back()["state"] = state.substr(0, state.find(' '));
  }
  if (json) return absl::StrCat(JsonText(objects, 2), "\n");
  return text.empty() ? std::string("nobody was invited\n") : text;
}

}  // namespace causeway::server
