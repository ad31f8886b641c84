// The one border between absl::Status and grpc::Status: the codes are the same, the numbers too.
#ifndef CAUSEWAY_COMMON_RPC_STATUS_H_
#define CAUSEWAY_COMMON_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace causeway {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// Errors after which the same call may succeed: the connection or the peer was away, or asked for
// patience. All others are final. CANCELLED is among them: a server that stops cancels its calls;
// who may have cancelled himself looks at that first.
bool IsRetryable(const absl::Status& status);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_RPC_STATUS_H_
