// Session.Describe, as every client calls it first.
#pragma once

#include <grpcpp/client_context.h>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "causeway/v1/session.grpc.pb.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"

namespace causeway {

inline absl::StatusOr<v1::DescribeResponse> DescribeRun(v1::Session::StubInterface& stub) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  v1::DescribeRequest request;
  request.set_wire_version(kWireVersion);
  v1::DescribeResponse response;
  const absl::Status status = FromGrpcStatus(stub.Describe(&context, request, &response));
  if (!status.ok()) return status;
  return response;
}

}  // namespace causeway
