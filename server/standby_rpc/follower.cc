#include "server/standby_rpc/follower.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "server/store/run_database.h"
#include "server/store/run_directory.h"

namespace causeway::server {

absl::Status Follower::Run() {
  std::string last_line;
  for (;;) {
    grpc::ClientContext context;
    {
      absl::MutexLock lock(&mutex_);
      if (stopped_) return absl::OkStatus();
      context_ = &context;
    }
    const absl::Status status = FollowOnce(context);
    notes_.SetFollowing(false);
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    if (stopped_) return absl::OkStatus();
    if (!security_.Passes(status)) return status;
    const std::string line =
        absl::StrCat(MadeOnTheWay(status) ? "no answer from" : "not served by",
                     " the coordinator at ", address_, ", trying on: ", status.message());
    notes_.Doing(line);
    if (line != last_line) Log().warn("{}", line);
    last_line = line;
    mutex_.AwaitWithTimeout(absl::Condition(&stopped_), pause_);
  }
}

void Follower::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool Follower::has_followed() const {
  absl::MutexLock lock(&mutex_);
  return has_followed_;
}

absl::Status Follower::FollowOnce(grpc::ClientContext& context) {
  const std::shared_ptr<grpc::Channel> channel = channel_.Now();
  const auto stub = v1::Standby::NewStub(channel);
  const auto stream = stub->Follow(&context);
  v1::FollowRequest request = copy_.Ask();
  notes_.SetCommits(request.position().commits());
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
      const v1::FollowHeader& header = response.header();
      if (header.wire_version() != kWireVersion) {
        broken = absl::FailedPreconditionError(absl::StrCat(
            "the coordinator at ", address_, " speaks wire version ", header.wire_version(),
            ", this follower ", kWireVersion, ": use the same release for both"));
        break;
      }
      if (header.format_version() != kRunFormatVersion) {
        broken = absl::FailedPreconditionError(
            absl::StrCat("the coordinator at ", address_, " keeps its run in format version ",
                         header.format_version(), ", this follower in ", kRunFormatVersion,
                         ": use the same release for both"));
        break;
      }
      commits = header.commits();
      Log().info("follows run {} from commit {} of {}", header.run_id(),
                 request.position().commits(), commits);
      notes_.SetCoordinatorCommits(commits);
      notes_.SetFollowing(true);
      notes_.Doing(absl::StrCat("follows ", address_));
      absl::MutexLock lock(&mutex_);
      has_followed_ = true;
    } else if (response.commits() > 0) {
      notes_.SetCoordinatorCommits(response.commits());
    }
    const absl::StatusOr<bool> step = copy_.Take(response);
    broken = step.status();
    if (!step.ok() || !*step) continue;
    request = copy_.Ask();
    notes_.SetCommits(request.position().commits());
    stream->Write(request);
    // Between two commits, so that no transfer begins again.
    if (channel_.Now() != channel) {
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
  RETURN_IF_ERROR(FromGrpcStatus(stream->Finish()));
  return absl::UnavailableError("it has ended the stream");
}

namespace {

constexpr absl::Duration kPause = absl::Seconds(1);

}  // namespace

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

Following::Following(std::unique_ptr<RunDirectoryStore> store, const std::string& name,
                     const std::string& address, const ChannelSecurity& security,
                     StandbyNotes& notes)
    : store_(std::move(store)),
      copy_(*store_, name),
      follower_(copy_, notes, security, address, kPause) {}

absl::StatusOr<std::unique_ptr<Following>> Following::Start(
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
  std::unique_ptr<Following> following(
      new Following(std::move(store), name, address, security, notes));
  ASSIGN_OR_RETURN(following->thread_, StartThread([own = following.get()] {
                     own->result_ = own->follower_.Run();
                     own->ended_ = true;
                   }));
  return following;
}

absl::Status Following::Stop() {
  follower_.Stop();
  if (thread_.joinable()) thread_.join();
  return result_;
}

}  // namespace causeway::server
