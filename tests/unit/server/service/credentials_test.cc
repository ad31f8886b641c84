// Credentials that change while a run goes on: certificates renewed, broken, and of a new
// authority; tokens given and taken away.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/clock.h"
#include "common/client/grpc_exchange.h"
#include "common/client/session.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/service/secure_run.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

const std::string kA(40, 'a');  // Tokens.
const std::string kB(40, 'b');

class CredentialsTest : public SecureRunTest {
 protected:
  CoordinatorServer::Options Options(const SecurityOptions& security) {
    CoordinatorServer::Options options;
    options.security = security;
    options.events = &events_;
    return options;
  }
  // Serves whoever shows a token of these lines; returns who shows `token`.
  SecurityOptions ServeTokens(const std::string& lines, const std::string& token) {
    server_security_ = folder_.WriteSet("server", "", Server(authority_, absl::Hours(1)));
    server_security_.ca_file.clear();
    server_security_.token_file = folder_.Write("tokens", lines);
    Serve(Options(server_security_));
    return Shows("token-a", token);
  }
  // Who shows `token`, in a file of that name.
  SecurityOptions Shows(const std::string& name, const std::string& token) {
    SecurityOptions client;
    client.ca_file = folder_.Write("ca", authority_.pem());
    client.token_file = TokenFile(name, token);
    return client;
  }
  // Worker "a" with its session's events, which goes on over new connections.
  Session::Options MemberOf(const ChannelSecurity& security, EventLog& events) {
    Session::Options options;
    options.channels = std::make_shared<RenewedChannels>(server_->address(), security);
    options.join = MakeJoin(run_.coordinator(), "a").join();
    options.events = &events;
    return options;
  }
  ChannelSecurity SecurityOf(const SecurityOptions& options) const {
    return MakeChannelSecurity(options, server_->address(), absl::Now()).value();
  }

  // Shakes hands on a new connection.
  absl::StatusOr<Certificate> Handshake(const SecurityOptions& options) {
    return TryTlsHandshake(server_->address(), options, absl::Seconds(10));
  }
  static void Await(const std::string& what, const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline) << "waited in vain until " << what;
      absl::SleepFor(absl::Milliseconds(20));  // For gRPC's look at the files.
    }
  }
  PemPair Server(const TestAuthority& authority, absl::Duration life) {
    CertificateRequest request;
    request.names = "DNS:localhost,IP:127.0.0.1";
    request.use = CertificateUse::kServer;
    request.not_after = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now() + life));
    return authority.Issue(request);
  }
  PemPair Worker(const TestAuthority& authority) {
    return IssueIdentity(authority, "causeway://*/worker/a");
  }
  std::string TokenFile(const std::string& name, const std::string& token) {
    return folder_.Write(name, absl::StrCat(token, "\n"));
  }

  SecurityOptions server_security_;  // Of ServeTokens.
};

TEST_F(CredentialsTest, ANewAuthorityTakesOverFromAnOldOne) {
  const TestAuthority successor("successor");
  const std::string both = authority_.pem() + successor.pem();
  Serve(
      Options(folder_.WriteSet("server", authority_.pem(), Server(authority_, absl::Hours(100)))));
  Train(With(folder_.WriteSet("worker", authority_.pem(), Worker(authority_))));
  // Its certificates are not watched: it stands for someone whose certificate is to be worthless.
  const SecurityOptions former = folder_.WriteSet("former", both, Worker(authority_));
  const SecurityOptions latter = folder_.WriteSet("latter", both, Worker(successor));
  // First everybody trusts both, then the certificates change, then the old authority goes.
  folder_.Write("server.ca", both);
  folder_.Write("worker.ca", both);
  Await("the coordinator trusts the successor", [&] { return Handshake(latter).ok(); });
  EXPECT_TRUE(Handshake(former).ok());
  folder_.WriteSet("server", both, Server(successor, absl::Hours(100)));
  folder_.WriteSet("worker", both, Worker(successor));
  Await("the coordinator shows the successor's certificate", [&] {
    SecurityOptions only_new = latter;
    only_new.ca_file = folder_.Write("successor.ca", successor.pem());
    return Handshake(only_new).ok();
  });
  folder_.Write("server.ca", successor.pem());
  Await("the old authority counts for nothing", [&] { return !Handshake(former).ok(); });
  EXPECT_TRUE(Handshake(latter).ok());
  honest_->AwaitRounds(2);
}

TEST_F(CredentialsTest, AWorkersRenewedCertificateServesItsNextConnection) {
  const TestAuthority successor("successor");
  const std::string both = authority_.pem() + successor.pem();
  Serve(Options(folder_.WriteSet("server", both, Server(authority_, absl::Hours(100)))));
  const SecurityOptions worker = folder_.WriteSet("worker", both, Worker(authority_));
  RenewedChannels channel(server_->address(), SecurityOf(worker));
  const auto describe = [&] { return Describe(Stubs(channel.Now())); };
  ASSERT_TRUE(describe().ok());
  // At a coordinator that takes the new one alone.
  folder_.WriteSet("worker", both, Worker(successor));
  server_->Serve(
      Options(folder_.WriteSet("strict", successor.pem(), Server(authority_, absl::Hours(100)))));
  Await("the channel connects with the renewed certificate", [&] { return describe().ok(); });
  StatePullOptions pull;
  pull.worker_id = "a";
  const auto state = PullPublishedState(channel, kRunId, run_.coordinator().plan(), pull);
  EXPECT_TRUE(state.ok()) << state.status();
}

TEST_F(CredentialsTest, AnOpenSessionAndItsLanesGoOnWithTheRenewedCertificate) {
  const TestAuthority successor("successor");
  const std::string both = authority_.pem() + successor.pem();
  Serve(Options(folder_.WriteSet("server", both, Server(authority_, absl::Hours(100)))));
  SecurityOptions files = folder_.WriteSet("worker", both, Worker(authority_));
  files.refresh_interval = absl::Seconds(1);
  const ChannelSecurity security = SecurityOf(files);
  AwaitedEvents events;
  auto session = Session::Attach(MemberOf(security, events)).value();
  Link::Options of_link;
  const auto channels = std::make_shared<RenewedChannels>(server_->address(), security);
  of_link.channels = channels;
  Link link(std::move(of_link));
  GrpcExchange exchange({.link = &link,
                         .session = session.get(),
                         .plan = &run_.coordinator().plan(),
                         .sync = run_.coordinator().config().sync()});
  ASSERT_TRUE(exchange.PullState(0).ok());
  const auto former = channels->Now(1);
  // Half of it is there, then all: the present connection goes on meanwhile.
  const PemPair renewed = Worker(successor);
  folder_.Write("worker.cert", renewed.certificate);
  EXPECT_EQ(channels->Now(1), former);
  folder_.Write("worker.key", renewed.key);
  EXPECT_EQ(events.Await("session_broke")["reason"],
            "its connection is made anew: the certificate has changed");
  events.Await("session_resumed");
  EXPECT_NE(channels->Now(1), former);
  EXPECT_TRUE(exchange.PullState(0).ok());
  EXPECT_TRUE(session->orders().ok());
  session->Leave(v1::Leave::FINISHED, "");
}

TEST_F(CredentialsTest, ASessionGoesOnThoughItsFileHasAnothersTokenWhenItsConnectionBreaks) {
  const SecurityOptions worker =
      ServeTokens(TokenLine(kA, "worker a") + TokenLine(kB, "worker b"), kA);
  const ChannelSecurity security = SecurityOf(worker);
  absl::Mutex mutex;
  std::vector<std::string> said;
  security.files->ReportTo([&](const CertificateNotice& notice) {
    absl::MutexLock lock(&mutex);
    if (!notice.fit) said.push_back(notice.message);
  });
  AwaitedEvents events;
  Session::Options options = MemberOf(security, events);
  options.passes = [&](const absl::Status& status) { return security.Passes(status); };
  auto session = Session::Attach(std::move(options)).value();
  TokenFile("token-a", kB);
  server_->Stop(absl::Seconds(1));
  server_->Serve(Options(server_security_));
  events.Await("session_resumed");
  {
    absl::MutexLock lock(&mutex);
    EXPECT_THAT(said, testing::ElementsAre(
                          testing::AllOf(HasSubstr("worker b asked to attach as worker \"a\""),
                                         HasSubstr("the one before goes on"))));
  }
  session->Leave(v1::Leave::FINISHED, "");
  security.files->ReportTo(nullptr);
}

TEST_F(CredentialsTest, TokensCountAsTheirFileSays) {
  const SecurityOptions worker =
      ServeTokens(TokenLine(kA, "worker a") + TokenLine(kB, "observer b"), kA);
  Train(With(worker));

  const Stubs eye = With(Shows("token-b", kB));
  EXPECT_TRUE(Describe(eye).ok());
  EXPECT_THAT(PushDelta(*eye.exchange, honest_->first_delta()), StatusIs(kPermissionDenied));

  // Taken away: refused from the next call on, over the same connection; for good once the list is
  // surely whole (token_table_test.cc).
  folder_.Write("tokens", TokenLine(kA, "worker a"));
  EXPECT_THAT(Describe(eye), StatusIs(kUnavailable));
  // A new one: taken up by both sides without a restart.
  const std::string c(40, 'c');
  folder_.Write("tokens", TokenLine(kA, "worker a") + TokenLine(c, "observer b"));
  TokenFile("token-b", c);
  EXPECT_TRUE(Describe(eye).ok());

  // Who shows nothing, or the hash that stands in the file, or somebody's token twice over.
  const auto with_header = [&](const std::vector<std::string>& values) {
    grpc::ClientContext context;
    for (const std::string& value : values) context.AddMetadata("authorization", value);
    v1::DescribeRequest request;
    request.set_wire_version(kWireVersion);
    v1::DescribeResponse response;
    grpc::experimental::TlsChannelCredentialsOptions tls;
    tls.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(worker.ca_file, 1));
    tls.watch_root_certs();
    const auto stub = v1::Session::NewStub(
        grpc::CreateChannel(server_->address(), grpc::experimental::TlsCredentials(tls)));
    return FromGrpcStatus(stub->Describe(&context, request, &response)).code();
  };
  EXPECT_EQ(with_header({"Bearer " + kA}), kOk);
  EXPECT_EQ(with_header({}), kUnauthenticated);
  EXPECT_EQ(with_header({kA}), kUnauthenticated);
  EXPECT_EQ(with_header({"Bearer "}), kUnauthenticated);
  EXPECT_EQ(with_header({"Bearer " + TokenLine(kA, "").substr(0, 64)}), kUnauthenticated);
  EXPECT_EQ(with_header({"Bearer " + kA, "Bearer " + c}), kUnauthenticated);
  EXPECT_EQ(with_header({"Bearer " + std::string(5000, 'x')}), kUnauthenticated);
}

TEST_F(CredentialsTest, WhoKnowsTheRunSeesThatItsCoordinatorRefuses) {
  const Stubs stubs = With(ServeTokens(TokenLine(kA, "worker a"), kA));
  OpenSession session(*stubs.session, MakeJoin(run_.coordinator(), "b"), kPatience);
  EXPECT_FALSE(session.welcome.has_value());
  const grpc::Status end = session.End();
  const absl::Status own = FromGrpcStatus(end, session.context, kRunId);
  EXPECT_THAT(own, StatusIs(kPermissionDenied));
  EXPECT_FALSE(MayBeAnothers(own));
  EXPECT_TRUE(MayBeAnothers(FromGrpcStatus(end, session.context, "guarded-2")));
}

TEST_F(CredentialsTest, GuessingTokensIsSlow) {
  const Stubs guesser = With(ServeTokens(TokenLine(kA, "worker a"), std::string(40, 'g')));
  absl::Status status;
  int guesses = 0;
  do {
    status = Describe(guesser);
  } while (absl::IsUnauthenticated(status) && ++guesses < 10'000);
  EXPECT_THAT(status, StatusIs(kResourceExhausted));
  EXPECT_TRUE(Describe(With(Shows("token-a", kA))).ok());  // From the same address.
}

TEST_F(CredentialsTest, CertificatesAndTokensSideBySide) {
  SecurityOptions server =
      folder_.WriteSet("server", authority_.pem(), Server(authority_, absl::Hours(1)));
  server.token_file = folder_.Write("tokens", TokenLine(kB, "observer b"));
  Serve(Options(server));
  Train(With(folder_.WriteSet("worker", authority_.pem(), Worker(authority_))));
  EXPECT_TRUE(Describe(With(Shows("token-b", kB))).ok());
  // A certificate of a stranger is refused, not overlooked.
  const TestAuthority other("other");
  EXPECT_FALSE(Handshake(folder_.WriteSet("other", authority_.pem(), Worker(other))).ok());
}

TEST_F(CredentialsTest, ARevocationListThatHasEndedLetsNobodyInUntilTheNextOne) {
  const std::string lists = folder_.path("lists");
  std::filesystem::create_directory(lists);
  const auto write = [&](int number, absl::Duration life) {
    folder_.Write(absl::StrCat("lists/", authority_.RevocationListName(number)),
                  authority_.RevocationList({}, absl::Now() + life));
  };
  SecurityOptions server =
      folder_.WriteSet("server", authority_.pem(), Server(authority_, absl::Hours(1)));
  server.crl_folder = lists;
  Serve(Options(server));
  const SecurityOptions worker = folder_.WriteSet("worker", authority_.pem(), Worker(authority_));
  Train(With(worker));
  write(0, -absl::Minutes(1));
  EXPECT_FALSE(Handshake(worker).ok()) << "nobody knows who was revoked since";
  events_.Await("revocation_list_ended");
  honest_->AwaitRounds(2);  // Its connections are open.
  write(1, absl::Hours(24));
  EXPECT_TRUE(Handshake(worker).ok());
}

TEST_F(CredentialsTest, AListOfTokensThatCannotBeReadIsRefusedAtTheStart) {
  SecurityOptions options = folder_.WriteSet("server", "", Server(authority_, absl::Hours(1)));
  options.ca_file.clear();
  options.token_file = folder_.Write("tokens", "these are no tokens\n");
  EXPECT_THAT(
      CoordinatorServer::Start({.address = "127.0.0.1:0", .security = options}, run_.coordinator()),
      StatusIs(kInvalidArgument, HasSubstr("tokens:1")));
}

}  // namespace
}  // namespace causeway::server
