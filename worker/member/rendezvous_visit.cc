#include "worker/member/rendezvous.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "causeway/v1/site.grpc.pb.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(100);
constexpr int kBackoffMs = 100;
constexpr int kLongestBackoffMs = 1'000;

class ClientStream final : public SiteStream {
 public:
  explicit ClientStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Site::NewStub(channel)), stream_(stub_->Link(&context_)) {}
  ~ClientStream() override {
    Cut();
    if (end_.ok()) (void)stream_->Finish();
  }

  absl::Status Read(v1::SiteFrame& frame) override {
    if (stream_->Read(&frame)) return absl::OkStatus();
    end_ = FromGrpcStatus(stream_->Finish());
    if (end_.ok()) end_ = absl::UnavailableError("it was closed");
    return end_;
  }
  absl::Status Write(const v1::SiteFrame& frame) override {
    if (stream_->Write(frame)) return absl::OkStatus();
    return absl::UnavailableError("it was closed");
  }
  void CloseWrites() override { (void)stream_->WritesDone(); }
  void Cut() override { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::Site::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::SiteFrame, v1::SiteFrame>> stream_;
  absl::Status end_;  // The reader's; OK: it has not ended.
};

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeSiteChannel(const SiteRendezvous& rendezvous) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kSiteKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kSiteKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestBackoffMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!rendezvous.secret.empty()) {
    ASSIGN_OR_RETURN(const KeyedCertificate site, CertificateOfSite(rendezvous.secret));
    credentials = grpc::SslCredentials({.pem_root_certs = site.certificate,
                                        .pem_private_key = site.key,
                                        .pem_cert_chain = site.certificate});
    arguments.SetSslTargetNameOverride(kSiteName);
  }
  return grpc::CreateCustomChannel(SiteAddress(rendezvous.launch), credentials, arguments);
}

// The stream of a process that is welcome.
absl::StatusOr<std::unique_ptr<SiteStream>> Knock(const std::shared_ptr<grpc::Channel>& channel,
                                                  const SiteRendezvous& rendezvous) {
  auto stream = std::make_unique<ClientStream>(channel);
  const int listener = rendezvous.cause->Listen([&](const absl::Status&) { stream->Cut(); });
  const absl::Cleanup unlisten = [&] { rendezvous.cause->Remove(listener); };
  v1::SiteFrame frame;
  frame.set_kind(v1::SiteFrame::HELLO);
  frame.mutable_hello()->set_token(rendezvous.token);
  frame.mutable_hello()->set_process(rendezvous.launch.process);
  frame.mutable_hello()->set_processes(rendezvous.launch.processes);
  (void)stream->Write(frame);  // Reading says what is wrong.
  RETURN_IF_ERROR(stream->Read(frame));
  return stream;
}

// Says what a failed handshake shows that no other try will change; empty: nothing. TLS's own
// words, which reach us in gRPC's message alone.
absl::string_view WrongSecret(const absl::Status& status) {
  if (absl::StrContains(status.message(), "certificate verify failed")) {
    return " has another site secret than this one";
  }
  if (absl::StrContains(status.message(), "wrong version number")) {
    return " has no site secret, and this one has";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SiteLink>> VisitSite(const SiteRendezvous& rendezvous) {
  const LaunchEnvironment& launch = rendezvous.launch;
  const std::string there =
      absl::StrCat(launch.master_address, ":", launch.master_port, " (MASTER_ADDR, MASTER_PORT)");
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeSiteChannel(rendezvous));
  const absl::Time deadline = absl::Now() + rendezvous.patience;
  absl::Status last;
  bool warned = false;
  do {
    RETURN_IF_ERROR(rendezvous.cause->Get());
    absl::StatusOr<std::unique_ptr<SiteStream>> stream = Knock(channel, rendezvous);
    if (stream.ok()) {
      return std::make_unique<SiteLink>(*std::move(stream), NameOfProcess(0), rendezvous.cause);
    }
    last = stream.status();
    if (absl::IsFailedPrecondition(last)) {
      return absl::FailedPreconditionError(absl::StrCat("process 0 at ", there, " turned process ",
                                                        launch.process, " away: ", last.message()));
    }
    if (const absl::string_view wrong = WrongSecret(last); !wrong.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("process 0 at ", there, wrong,
                       ": start all processes of the site with the same "
                       "--site_secret_file, or all without (",
                       last.message(), ")"));
    }
    if (!warned && absl::StrContains(last.message(), "handshake")) {
      warned = true;
      Log().warn(
          "{} does not speak TLS with this process: have all the same "
          "--site_secret_file, or none? Trying again ({})",
          there, std::string(last.message()));
    }
    absl::SleepFor(kRetry);
  } while (absl::Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat(
      "process ", launch.process, " of this site did not reach process 0 at ", there, " within ",
      absl::FormatDuration(rendezvous.patience),
      ": is it running, can it be reached there, and have all the same --site_secret_file, or "
      "none? (",
      last.message(), ")"));
}

}  // namespace causeway::worker
