#include "worker/member/rendezvous.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_address.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

constexpr int kMostProcesses = 65536;
constexpr int kMostPorts = 65535;

// The variable, from `least` to `most`.
absl::StatusOr<int> ReadNumber(const Environment& environment, absl::string_view name, int least,
                               int most, absl::string_view meaning) {
  const std::optional<std::string> text = environment(name);
  if (!text.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " (", meaning,
                     ") is not set, but RANK or WORLD_SIZE is: a site of several processes needs "
                     "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
                     "MASTER_PORT, as torchrun sets them; unset RANK and WORLD_SIZE for a process "
                     "by itself"));
  }
  int number = 0;
  if (absl::SimpleAtoi(*text, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(absl::StrCat(
      name, " (", meaning, ") is \"", *text, "\"; expected a number from ", least, " to ", most));
}

}  // namespace

std::optional<std::string> ProcessEnvironment(absl::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const Environment& environment) {
  LaunchEnvironment launch;
  if (!environment("RANK").has_value() && !environment("WORLD_SIZE").has_value()) return launch;
  ASSIGN_OR_RETURN(launch.processes, ReadNumber(environment, "WORLD_SIZE", 1, kMostProcesses,
                                                "the processes of the site"));
  ASSIGN_OR_RETURN(launch.process, ReadNumber(environment, "RANK", 0, launch.processes - 1,
                                              "this process among those of the site"));
  if (launch.processes == 1) return launch;
  ASSIGN_OR_RETURN(launch.local_processes,
                   ReadNumber(environment, "LOCAL_WORLD_SIZE", 1, launch.processes,
                              "the processes on this machine"));
  ASSIGN_OR_RETURN(launch.local_process,
                   ReadNumber(environment, "LOCAL_RANK", 0, launch.local_processes - 1,
                              "this process among those on this machine"));
  ASSIGN_OR_RETURN(launch.master_port, ReadNumber(environment, "MASTER_PORT", 1, kMostPorts - 1,
                                                  "the port of process 0"));
  const std::optional<std::string> address = environment("MASTER_ADDR");
  if (!address.has_value() || address->empty()) {
    return absl::InvalidArgumentError(
        "MASTER_ADDR is not set: it is the name or address of the machine with process 0 (RANK 0)");
  }
  launch.master_address = *address;
  if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True") ++launch.master_port;
  return launch;
}

absl::StatusOr<std::vector<int>> DevicesOfProcess(const LaunchEnvironment& launch,
                                                  const std::vector<int>& visible) {
  const auto processes = static_cast<size_t>(launch.local_processes);
  if (visible.size() < processes) return visible;
  if (visible.size() % processes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(visible.size(), " GPUs cannot be shared out equally to the ", processes,
                     " processes of this machine (LOCAL_WORLD_SIZE): start as many processes as "
                     "there are GPUs, or one"));
  }
  const size_t each = visible.size() / processes;
  const auto first = visible.begin() + static_cast<std::ptrdiff_t>(each) * launch.local_process;
  return std::vector<int>(first, first + static_cast<std::ptrdiff_t>(each));
}

namespace {

// How soon a peer is missed that is off the network or stopped: after half a minute.
constexpr int kSiteKeepaliveMs = 10'000;
constexpr int kSiteKeepaliveTimeoutMs = 20'000;

// The DNS name in a site's certificate, whatever the machine is called.
constexpr char kSiteName[] = "site";

// HOST:PORT of process 0.
std::string SiteAddress(const LaunchEnvironment& launch) {
  const bool is_ipv6 = launch.master_address.find(':') != std::string::npos;
  return absl::StrCat(is_ipv6 ? "[" : "", launch.master_address, is_ipv6 ? "]:" : ":",
                      launch.master_port);
}

constexpr size_t kMostNamed = 8;
// Threads beside one for each process: for strangers.
constexpr int kSpareThreads = 64;
// How soon a visitor is missed who has gone before all are there.
constexpr absl::Duration kPoll = absl::Milliseconds(100);
// For one who is there already, and has ended, to be missed.
constexpr absl::Duration kTwicePatience = absl::Seconds(2);

// Where process 0 listens: at the address that the others come to, unless its name stands for this
// machine here and not elsewhere (Debian's 127.0.1.1 of the machine's own name).
std::vector<std::string> AddressesToTry(const LaunchEnvironment& launch) {
  const std::string address = SiteAddress(launch);
  const std::string everywhere = absl::StrCat("[::]:", launch.master_port);
  const auto found = ResolveAddress(address, /*allow_any_port=*/true);
  if (!found.ok() || (found->front().is_loopback() && !IsLoopback(address))) return {everywhere};
  return {address, everywhere};
}

}  // namespace

absl::StatusOr<KeyedCertificate> CertificateOfSite(const std::string& secret) {
  return CertificateOfSecret(secret, "causeway site", absl::StrCat("DNS:", kSiteName));
}

// A process that has come: its stream, which lasts as long as the call of it.
class SiteDoor::Visitor final : public SiteStream {
 public:
  Visitor(grpc::ServerContext* context, Stream* stream) : context_(*context), stream_(*stream) {}

  bool HasGone() const { return context_.IsCancelled(); }
  // Both under the door's mutex. Nothing may be written to a visitor before its welcome.
  bool is_welcomed() const { return is_welcomed_; }
  void set_welcomed() { is_welcomed_ = true; }

  absl::Status Read(v1::SiteFrame& frame) override {
    if (stream_.Read(&frame)) return absl::OkStatus();
    const bool cut = context_.IsCancelled();
    LetGo();
    return absl::UnavailableError(cut ? "it was cut" : "it was closed");
  }
  absl::Status Write(const v1::SiteFrame& frame) override {
    absl::MutexLock lock(&write_mutex_);
    if (!over_ && stream_.Write(frame)) return absl::OkStatus();
    return absl::UnavailableError("it was closed");
  }
  // A server closes its half with the call, which ends when the other has closed his.
  void CloseWrites() override {}
  void Cut() override {
    absl::MutexLock lock(&write_mutex_);
    if (!over_) context_.TryCancel();
  }
  // Nobody reads any more: the call may end.
  void LetGo() {
    absl::MutexLock lock(&write_mutex_);
    over_ = true;
  }
  void WaitUntilOver() {
    absl::MutexLock lock(&write_mutex_);
    write_mutex_.Await(absl::Condition(&over_));
  }

 private:
  grpc::ServerContext& context_;
  Stream& stream_;
  bool is_welcomed_ = false;
  absl::Mutex write_mutex_;
  bool over_ ABSL_GUARDED_BY(write_mutex_) = false;
};

SiteDoor::SiteDoor(const SiteRendezvous& rendezvous)
    : rendezvous_(rendezvous),
      processes_(rendezvous.launch.processes),
      came_(static_cast<size_t>(processes_ - 1)) {}

SiteDoor::~SiteDoor() {
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    came_.clear();
  }
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

bool SiteDoor::Listen(const std::string& address,
                      const std::shared_ptr<grpc::ServerCredentials>& security) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, security, &port_);
  builder.RegisterService(this);
  builder.SetResourceQuota(grpc::ResourceQuota("site").SetMaxThreads(processes_ + kSpareThreads));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kSiteKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kSiteKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kSiteKeepaliveMs / 2);
  server_ = builder.BuildAndStart();
  return server_ != nullptr;
}

absl::StatusOr<std::unique_ptr<SiteDoor>> SiteDoor::Open(const SiteRendezvous& rendezvous) {
  std::shared_ptr<grpc::ServerCredentials> security = grpc::InsecureServerCredentials();
  if (!rendezvous.secret.empty()) {
    ASSIGN_OR_RETURN(const KeyedCertificate site, CertificateOfSite(rendezvous.secret));
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = site.certificate;
    options.pem_key_cert_pairs = {{.private_key = site.key, .cert_chain = site.certificate}};
    security = grpc::SslServerCredentials(options);
  }
  std::unique_ptr<SiteDoor> door(new SiteDoor(rendezvous));
  for (const std::string& address : AddressesToTry(rendezvous.launch)) {
    if (door->Listen(address, security)) return door;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("process 0 of this site cannot listen on port ", rendezvous.launch.master_port,
                   " (MASTER_PORT): does another program? Choose another port"));
}

absl::StatusOr<std::vector<std::unique_ptr<SiteLink>>> SiteDoor::Gather() {
  std::vector<std::unique_ptr<SiteLink>> links;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !twice_.ok() || std::ranges::all_of(came_, [](const auto& visitor) {
        return visitor != nullptr && visitor->is_welcomed() && !visitor->HasGone();
      });
    };
    const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(&settled), rendezvous_.patience);
    status = in_time ? twice_ : Missing();
    over_ = true;
    for (size_t i = 0; i < came_.size(); ++i) {
      if (came_[i] == nullptr) continue;
      std::shared_ptr<SiteStream> stream(came_[i].get(),
                                         [visitor = came_[i]](SiteStream*) { visitor->LetGo(); });
      links.push_back(std::make_unique<SiteLink>(
          std::move(stream), NameOfProcess(static_cast<int>(i) + 1), rendezvous_.cause));
    }
  }
  if (status.ok()) return links;
  // Those that came do not wait for what will not be: they hear why.
  rendezvous_.cause->Set(status);
  for (const std::unique_ptr<SiteLink>& link : links) link->Start();
  return status;
}

grpc::Status SiteDoor::Link(grpc::ServerContext* context, Stream* stream) {
  v1::SiteFrame frame;
  if (!stream->Read(&frame)) return grpc::Status::OK;
  const v1::SiteHello hello = frame.hello();
  if (hello.token() != rendezvous_.token) {
    return TurnAway(
        hello, ", of another worker or with another --id or --coordinator",
        "it belongs to another worker; all processes of a site are started with the same --id and "
        "--coordinator, spelled the same, and two sites on one machine need two ports");
  }
  if (hello.processes() != processes_ || hello.process() < 1 || hello.process() >= processes_) {
    return TurnAway(hello, "",
                    absl::StrCat("its site has ", processes_, " processes, and WORLD_SIZE is ",
                                 hello.processes(), " here"));
  }
  const auto visitor = std::make_shared<Visitor>(context, stream);
  grpc::Status attended = Attend(hello, visitor);
  if (attended.ok()) visitor->WaitUntilOver();
  return attended;
}

grpc::Status SiteDoor::Attend(const v1::SiteHello& hello, const std::shared_ptr<Visitor>& visitor) {
  const auto index = static_cast<size_t>(hello.process() - 1);
  {
    absl::MutexLock lock(&mutex_);
    const auto may_come = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return over_ || came_[index] == nullptr;
    };
    const bool free = mutex_.AwaitWithTimeout(absl::Condition(&may_come), kTwicePatience);
    if (over_) {
      return ToGrpcStatus(
          absl::UnavailableError("it has all its processes already: is a RANK there twice?"));
    }
    if (!free) {
      twice_ = absl::FailedPreconditionError(
          absl::StrCat("two processes of this site say that they are process ", hello.process(),
                       ": RANK must differ"));
      return ToGrpcStatus(
          absl::FailedPreconditionError("another one has that number already; RANK must differ"));
    }
    came_[index] = visitor;
  }
  v1::SiteFrame welcome;
  welcome.set_kind(v1::SiteFrame::HELLO);
  (void)visitor->Write(welcome);
  absl::MutexLock lock(&mutex_);
  visitor->set_welcomed();
  while (!mutex_.AwaitWithTimeout(absl::Condition(&over_), kPoll)) {
    if (!visitor->HasGone()) continue;
    came_[index] = nullptr;  // It may come again.
    return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

grpc::Status SiteDoor::TurnAway(const v1::SiteHello& hello, absl::string_view whose,
                                const std::string& why) {
  const std::string stranger = absl::StrCat("one that says that it is process ", hello.process(),
                                            " of ", hello.processes(), whose);
  absl::MutexLock lock(&mutex_);
  if (turned_away_.size() < kMostNamed && turned_away_.insert(stranger).second) {
    Log().warn("turned away: {}", stranger);
  }
  return ToGrpcStatus(absl::FailedPreconditionError(why));
}

absl::Status SiteDoor::Missing() const {
  std::vector<size_t> absent;
  for (size_t i = 0; i < came_.size(); ++i) {
    if (came_[i] == nullptr) absent.push_back(i + 1);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "process 0 of this site waited ", absl::FormatDuration(rendezvous_.patience),
      " for others (WORLD_SIZE is ", processes_,
      "); these did not come: ", absl::StrJoin(absent, ", "),
      turned_away_.empty() ? "" : "; turned away: ", absl::StrJoin(turned_away_, ", ")));
}

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
