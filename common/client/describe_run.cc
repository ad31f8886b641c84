#include "common/client/describe_run.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/client/reach.h"
#include "common/client/session.h"
#include "common/rpc/tls_handshake.h"

namespace causeway {
namespace {

// A coordinator that is up answers sooner; whether TLS is what keeps it silent is worth a look.
constexpr absl::Duration kExplainAfter = absl::Seconds(5);
constexpr absl::Duration kExplainTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<v1::DescribeResponse> DescribeOrExplain(v1::Session::StubInterface& stub,
                                                       const std::string& coordinator,
                                                       const SecurityOptions& security,
                                                       absl::Duration timeout,
                                                       absl::string_view region_id,
                                                       const std::function<bool()>& stop) {
  const absl::Duration first = std::min(timeout, kExplainAfter);
  absl::StatusOr<v1::DescribeResponse> description =
      DescribeRun(stub, coordinator, first, absl::ZeroDuration(), region_id, stop);
  if (!absl::IsUnavailable(description.status())) return description;
  ASSIGN_OR_RETURN(const std::vector<std::string> addresses, SplitAddresses(coordinator));
  RETURN_IF_ERROR(ExplainByTls(addresses.front(), security, kExplainTimeout));
  if (timeout > first) {
    description = DescribeRun(stub, coordinator, timeout - first, first, region_id, stop);
  }
  if (!absl::IsUnavailable(description.status())) return description;
  const std::string why =
      ExplainNoAnswer(addresses.front(), security.UsesTls(),
                      [](const char* name) -> const char* { return std::getenv(name); });
  if (why.empty()) return description;
  return absl::UnavailableError(absl::StrCat("no coordinator answers at ", coordinator, " within ",
                                             absl::FormatDuration(timeout), ": ", why));
}

}  // namespace causeway
