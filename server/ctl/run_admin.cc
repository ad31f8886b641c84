#include "server/ctl/run_admin.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"

namespace causeway::server {
bool IsNoAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

RunAdmin::RunAdmin(const std::string& address, const std::string& target,
                   const ChannelSecurity& security, absl::Duration timeout)
    : address_(address),
      timeout_(timeout),
      channels_(target, SecurityTo(address, target, security)) {}

absl::Status RunAdmin::Explain(const absl::Status& status) const {
  if (!MadeOnTheWay(status)) return status;
  const std::string within =
      absl::IsDeadlineExceeded(status)
          ? absl::StrCat(" within --timeout=", absl::FormatDuration(timeout_))
          : "";
  return absl::Status(
      status.code(),
      absl::StrCat("no answer from the coordinator at ", address_, within, ": ", status.message(),
                   "; is it running, is --coordinator its address, and do both sides use TLS "
                   "or neither?"));
}

}  // namespace causeway::server
