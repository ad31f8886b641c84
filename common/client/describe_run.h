// What a run is, asked of its coordinator before anybody joins it.
#ifndef CAUSEWAY_COMMON_CLIENT_DESCRIBE_RUN_H_
#define CAUSEWAY_COMMON_CLIENT_DESCRIBE_RUN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/security.h"

namespace causeway {

// DescribeRun (session.h), with its `stop`, that does not wait for a coordinator that will never
// talk to this side, and says what stands in the way of one that does not answer.
absl::StatusOr<v1::DescribeResponse> DescribeOrExplain(v1::Session::StubInterface& stub,
                                                       const std::string& coordinator,
                                                       const SecurityOptions& security,
                                                       absl::Duration timeout,
                                                       absl::string_view region_id = "",
                                                       const std::function<bool()>& stop = {});

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_CLIENT_DESCRIBE_RUN_H_
