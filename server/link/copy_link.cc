#include "server/link/copy_link.h"

#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "server/store/run_directory.h"

namespace causeway::server {
std::string MachineName() {
  char host[65] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) return "standby";
  std::string name = host;
  std::erase_if(name, [](char c) {
    return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-';
  });
  return name.empty() ? "standby" : name;
}

absl::Status PutAside(FileSystem& file_system, absl::string_view given, absl::string_view why) {
  const std::string folder(absl::StripSuffix(given, "/"));
  std::string aside;
  for (int i = 1; aside.empty() || file_system.Exists(aside); ++i) {
    aside = absl::StrCat(folder, ".former-", i);
  }
  RETURN_IF_ERROR(file_system.Rename(folder, aside));
  RETURN_IF_ERROR(file_system.SyncFolder(ParentFolder(folder)));
  Log().warn("{} {}: it is {} now, and a new copy begins", folder, std::string(why), aside);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CopyLink>> CopyLink::Start(
    FileSystem& file_system, const std::string& folder, const RunDirectoryStore::Options& options,
    const std::string& name, const std::string& address, const ChannelSecurity& security,
    StandbyNotes& notes) {
  ASSIGN_OR_RETURN(std::unique_ptr<RunDirectoryStore> store,
                   RunDirectoryStore::Open(file_system, folder, options));
  if (const absl::string_view network = NetworkFileSystemOf(folder); !network.empty()) {
    Log().warn("{} is on a network file system ({}): a copy belongs on another machine's disk",
               folder, std::string(network));
  }
  RETURN_IF_ERROR(store->Recover().status());
  RETURN_IF_ERROR(store->BeginCopy());
  std::unique_ptr<CopyLink> link(new CopyLink(std::move(store), name, address, security, notes));
  RETURN_IF_ERROR(link->StartFollowing());
  return link;
}

absl::Status CopyLink::Follow() {
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mutex_);
    context_ = &context;
  }
  // Between these Interrupt finds the context, or this sees that it came before.
  const absl::Status status = stopping() ? absl::OkStatus() : FollowOnce(context);
  notes_.Set(&StandbyNotes::View::following, false);
  absl::MutexLock lock(&mutex_);
  context_ = nullptr;
  return status;
}

void CopyLink::Interrupt() {
  absl::MutexLock lock(&mutex_);
  if (context_ != nullptr) context_->TryCancel();
}

std::string CopyLink::Line(const absl::Status& why) {
  std::string line = absl::StrCat(MadeOnTheWay(why) ? "no answer from" : "not served by",
                                  " the coordinator at ", address_, ", trying on: ", why.message());
  notes_.Doing(line);
  return line;
}

absl::Status CopyLink::TakeHeader(const v1::FollowHeader& header, int64_t own_commits) {
  if (header.wire_version() != kWireVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator at ", address_, " speaks wire version ", header.wire_version(),
        ", this follower ", kWireVersion, ": use the same release for both"));
  }
  if (header.format_version() != kRunFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", address_, " keeps its run in format version ",
                     header.format_version(), ", this follower in ", kRunFormatVersion,
                     ": use the same release for both"));
  }
  // Before the first commit nothing else would tell it apart.
  if (!run_id_.empty() && header.run_id() != run_id_) {
    return absl::FailedPreconditionError(
        absl::StrCat("this is the run ", header.run_id(), ", and ", run_id_, " was followed"));
  }
  run_id_ = header.run_id();
  Log().info("follows run {} from commit {} of {}", header.run_id(), own_commits, header.commits());
  notes_.Set(&StandbyNotes::View::coordinator_commits, header.commits());
  notes_.Set(&StandbyNotes::View::following, true);
  notes_.Doing(absl::StrCat("follows ", address_));
  has_followed_ = true;
  return absl::OkStatus();
}

absl::Status CopyLink::Judge(const absl::Status& refusal) const {
  if (!has_followed_ || IsRetryable(refusal) || !MayBeAnothers(refusal)) return refusal;
  return absl::UnavailableError(refusal.message());
}

absl::Status CopyLink::FollowOnce(grpc::ClientContext& context) {
  const std::shared_ptr<grpc::Channel> channel = channels_.Now();
  const auto stub = v1::Standby::NewStub(channel);
  const auto stream = stub->Follow(&context);
  v1::FollowRequest request = copy_.Ask();
  notes_.Set(&StandbyNotes::View::commits, request.position().commits());
  stream->Write(request);
  v1::FollowResponse response;
  absl::Status broken;
  bool caught_up = false;
  int64_t commits = 0;
  while (broken.ok() && stream->Read(&response)) {
    if (response.kind_case() == v1::FollowResponse::KIND_NOT_SET && response.commits() == 0) {
      // gRPC 1.51 gives an empty message for what is none, such as a proxy's page: the end says
      // why.
      context.TryCancel();
      continue;
    }
    if (response.has_header()) {
      commits = response.header().commits();
      broken = Judge(TakeHeader(response.header(), request.position().commits()));
      if (!broken.ok()) break;
    } else if (response.commits() > 0) {
      notes_.Set(&StandbyNotes::View::coordinator_commits, response.commits());
    }
    const absl::StatusOr<bool> step = copy_.Take(response);
    broken = step.status();
    if (!step.ok() || !*step) continue;
    request = copy_.Ask();
    notes_.Set(&StandbyNotes::View::commits, request.position().commits());
    stream->Write(request);
    // Between two commits, so that no transfer begins again.
    if (channels_.Now() != channel) {
      broken = Renewal();
    }
    if (!caught_up && request.position().commits() >= commits) {
      caught_up = true;
      Log().info("has all {} commits, and goes on following", request.position().commits());
    }
  }
  if (!broken.ok()) {
    context.TryCancel();
    stream->Finish();
    return broken;
  }
  RETURN_IF_ERROR(Judge(FromGrpcStatus(stream->Finish(), context, run_id_)));
  return absl::UnavailableError("it has ended the stream");
}

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

// The store's verdict on the follower is final. A fault of the store's own disk may pass, and
// says nothing of either history.
absl::Status OwnFaultPasses(const absl::Status& status) {
  if (status.ok() || absl::IsFailedPrecondition(status) || absl::IsOutOfRange(status) ||
      IsRetryable(status)) {
    return status;
  }
  return absl::UnavailableError(
      absl::StrCat("the coordinator cannot read its own run: ", status.message()));
}

}  // namespace

grpc::Status StandbyService::Follow(grpc::ServerContext* context, Stream* stream) {
  return ToGrpcStatus(Serve(*context, *stream));
}

absl::Status StandbyService::Serve(grpc::ServerContext& context, Stream& stream) {
  const absl::StatusOr<v1::RunIdentity> identity = store_.Identity();
  if (identity.ok()) TellRun(context, identity->run_id());
  ASSIGN_OR_RETURN(const Peer peer, access_.Admit(context, Action::kFollow));
  v1::FollowRequest request;
  if (!stream.Read(&request)) return absl::CancelledError("the follower is gone");
  RETURN_IF_ERROR(CheckRequest(request));
  RETURN_IF_ERROR(OwnFaultPasses(identity.status()));
  // Who cannot follow hears it in place of the header.
  if (request.position().commits() > 0) {
    RETURN_IF_ERROR(OwnFaultPasses(store_.ChangesSince(request.position()).status()));
  }
  const int64_t commits = store_.Position().commits();
  v1::FollowResponse response;
  v1::FollowHeader& header = *response.mutable_header();
  header.set_run_id(identity->run_id());
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
    const absl::StatusOr<bool> step =
        SendWhatLacks(store_, request,
                      [&](const v1::FollowResponse& response) { return stream.Write(response); });
    RETURN_IF_ERROR(OwnFaultPasses(step.status()));
    const bool sent = *step;
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
