#include "server/link/standby_service.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "server/standby/run_copy.h"

namespace causeway::server {
namespace {

// How long a stream without news waits before it looks whether its follower is still there.
constexpr absl::Duration kLook = absl::Milliseconds(100);

absl::Status CheckRequest(const v1::FollowRequest& request) {
  if (request.wire_version() != kWireVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("this coordinator speaks wire version ", kWireVersion, ", the follower ",
                     request.wire_version(), ": use the same release for both"));
  }
  if (request.format_version() != kRunFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this coordinator keeps its run in format version ", kRunFormatVersion, ", the follower ",
        "in ", request.format_version(), ": use the same release for both"));
  }
  return CheckName("the follower's name", request.name());
}

}  // namespace

grpc::Status StandbyService::Follow(grpc::ServerContext* context, Stream* stream) {
  return ToGrpcStatus(Serve(*context, *stream));
}

absl::Status StandbyService::Serve(grpc::ServerContext& context, Stream& stream) {
  ASSIGN_OR_RETURN(const Peer peer, access_.Admit(context, Action::kFollow));
  v1::FollowRequest request;
  if (!stream.Read(&request)) return absl::CancelledError("the follower is gone");
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(const v1::RunIdentity identity, store_.Identity());
  // Who cannot follow hears it in place of the header.
  if (request.position().commits() > 0) {
    RETURN_IF_ERROR(store_.ChangesSince(request.position()).status());
  }
  const int64_t commits = store_.Position().commits();
  v1::FollowResponse response;
  v1::FollowHeader& header = *response.mutable_header();
  header.set_run_id(identity.run_id());
  header.set_wire_version(kWireVersion);
  header.set_software_version(kSoftwareVersion);
  header.set_commits(commits);
  header.set_format_version(kRunFormatVersion);
  stream.Write(response);
  const std::string name = request.name();
  events_.Record(
      "standby_attached",
      absl::StrCat("standby ", name, " at ", peer.address, " follows from commit ",
                   request.position().commits(), " of ", commits, standbys_.AmongOthers(name)),
      {{"standby", name},
       {"commits", request.position().commits()},
       {"behind", commits - request.position().commits()}});
  int64_t standby = 0;
  const absl::Status ended = Feed(context, stream, peer, request, standby);
  standbys_.Detach(standby);
  events_.Record("standby_detached",
                 absl::StrCat("standby ", name, " does not follow any more, at commit ",
                              request.position().commits(), ": ", ended.message()),
                 {{"standby", name},
                  {"commits", request.position().commits()},
                  {"reason", std::string(ended.message())}});
  return ended;
}

absl::Status StandbyService::Feed(grpc::ServerContext& context, Stream& stream, const Peer& peer,
                                  v1::FollowRequest& request, int64_t& standby) {
  for (;;) {
    RETURN_IF_ERROR(access_.CheckStillValid(peer));
    ASSIGN_OR_RETURN(const bool sent,
                     SendWhatLacks(store_, request, [&](const v1::FollowResponse& response) {
                       return stream.Write(response);
                     }));
    const int64_t commits = request.position().commits();
    // That a copy which lacks something is of this run's past is proven by its next step.
    if (standby == 0) standby = standbys_.Attach(request.name(), sent ? 0 : commits);
    if (sent) {
      if (!stream.Read(&request)) return absl::CancelledError("the connection is gone");
      RETURN_IF_ERROR(CheckRequest(request));
      standbys_.Acknowledge(standby, request.position().commits());
    } else if (stopping_) {
      return absl::UnavailableError("the coordinator stops");
    } else {
      store_.WaitForCommit(commits, kLook);
      if (context.IsCancelled()) return absl::CancelledError("the connection is gone");
    }
  }
}

}  // namespace causeway::server
