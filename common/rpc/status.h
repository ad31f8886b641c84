// The one border between absl::Status and grpc::Status: the codes are the same, the numbers too.
//
// A status that a peer of ours has sent carries a mark, which proxies pass on. gRPC and proxies
// make statuses themselves where a call cannot be carried to its end: these have none, and tell of
// the way, whatever their code says. session.proto has the mark's bytes.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway {

// With the mark.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The peer's answer as it is. Without the mark it is MadeOnTheWay, and UNAVAILABLE in place of a
// code that a peer means for good; the message then has that code, and what to look at. So it
// passes, but codes that only a fault injector, a gateway or a peer of a release before the mark
// makes (INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE,
// DATA_LOSS) are also those of somebody else in the peer's place.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Whether gRPC or a proxy made it, and not the peer.
bool MadeOnTheWay(const absl::Status& status);

// Puts a hash of the run's id into the call's trailing metadata, as session.proto says: whoever
// knows the id learns that this run answers, and nobody else learns anything.
void TellRun(grpc::ServerContextBase& context, absl::string_view run_id);
// As the other, of a call that has ended; also notes whether that run's coordinator answered it.
absl::Status FromGrpcStatus(const grpc::Status& status, const grpc::ClientContext& context,
                            absl::string_view run_id);
// Whether whoever refuses a member so may be another run's coordinator, an old copy's, or none.
bool MayBeAnothers(const absl::Status& status);

// UNAVAILABLE: this side ends a call, whose connection shows credentials that are no more those of
// now, to make it again.
absl::Status Renewal();
bool IsRenewal(const absl::Status& status);

// Errors after which the same call may succeed: the connection or the peer was away, or asked for
// patience. All others are final. CANCELLED is among them: a server that stops cancels its calls;
// who may have cancelled himself looks at that first.
bool IsRetryable(const absl::Status& status);

// Whether the next start of a program that ended its start so may succeed: what passes, what a
// machine does (INTERNAL, such as an input/output error), and what another has (ALREADY_EXISTS).
bool NextStartMayPass(const absl::Status& status);

}  // namespace causeway
