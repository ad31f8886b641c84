// Everybody who has no business in a run, over real TLS connections: each gets the refusal that
// SECURITY.md promises, and the run that goes on at the same time does not notice.
#include <grpcpp/create_channel.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/security.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/plain_lane.h"
#include "tests/unit/server/service/raw_connection.h"
#include "tests/unit/server/service/secure_run.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class IntrudersTest : public SecureRunTest {
 protected:
  using Change = std::function<void(CoordinatorServer::Options&)>;
  explicit IntrudersTest(const Change& change = {}, int64_t rounds = kAsFastAsItCan) {
    CoordinatorServer::Options options;
    options.security = folder_.WriteSet("server", authority_.pem(), IssueServer(authority_));
    options.max_requests_per_second = 1000;
    if (change) change(options);
    Serve(options);
    Train(As("causeway://*/worker/a"), rounds);
  }

  SecurityOptions Files(const PemPair& pair) {
    return folder_.WriteSet(absl::StrCat("client-", ++clients_), authority_.pem(), pair);
  }
  Stubs As(const std::string& uri) { return With(Files(IssueIdentity(authority_, uri))); }

  template <typename Request, typename Response>
  static absl::Status Ask(Stubs& stubs,
                          grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                          const Request& request = {}) {
    grpc::ClientContext context;
    Response response;
    return FromGrpcStatus((stubs.admin.get()->*method)(&context, request, &response));
  }
  static absl::Status GetStatus(Stubs& stubs) { return Ask(stubs, &v1::Admin::Stub::GetStatus); }
  absl::Status PullState(Stubs& stubs, const std::string& worker_id) {
    std::vector<uint8_t> object;
    return PullAll(*stubs.exchange, worker_id, WantOf(v1::Want::STATE, 0), &object);
  }
  // The status of a session that begins with `join`.
  static absl::Status Attach(Stubs& stubs, const std::optional<v1::WorkerMessage>& join) {
    OpenSession session(*stubs.session, join);
    if (session.welcome.has_value()) session.context.TryCancel();
    return FromGrpcStatus(session.End());
  }
  // For peers that TLS itself turns away.
  void ExpectTurnedAwayByTls(const SecurityOptions& options, const std::string& words,
                             absl::Time now = absl::Now()) {
    EXPECT_THAT(Describe(With(options, now)), StatusIs(kUnavailable));
    EXPECT_THAT(ExplainByTls(server_->address(), options, absl::Seconds(10)),
                StatusIs(kFailedPrecondition, HasSubstr(words)));
  }
  static void ExpectDenied(const absl::Status& status, const std::string& who) {
    EXPECT_THAT(status, StatusIs(kPermissionDenied, AllOf(HasSubstr(who), HasSubstr("may"))));
  }

  int clients_ = 0;
};

TEST_F(IntrudersTest, WithoutTls) {
  EXPECT_THAT(Describe(Stubs(server_->Connect())), StatusIs(kUnavailable));
}

TEST_F(IntrudersTest, WithoutACertificateThatCounts) {
  SecurityOptions none;
  none.ca_file = folder_.Write("ca", authority_.pem());
  none.token_file = folder_.Write("token", std::string(64, 't'));
  ExpectTurnedAwayByTls(none, "no certificate");
  // Of another authority, by the same name, too, or by that of a member: whose key is no authority.
  for (const std::string name : {"test authority", "other", "causeway://*/operator/eve"}) {
    ExpectTurnedAwayByTls(Files(IssueIdentity(TestAuthority(name), "causeway://*/operator/eve")),
                          "--tls_ca");
  }
  CertificateRequest ended;
  ended.names = "URI:causeway://*/worker/a";
  ended.not_before = absl::Now() - absl::Hours(48);
  ended.not_after = absl::Now() - absl::Hours(24);
  // With a clock set back.
  ExpectTurnedAwayByTls(Files(authority_.Issue(ended)), "expired", absl::Now() - absl::Hours(36));
}

TEST_F(IntrudersTest, WithTheCertificateOfAServer) {
  CertificateRequest request;
  request.names = "URI:causeway://*/worker/a";
  request.use = CertificateUse::kServer;
  SecurityOptions options = Files(IssueIdentity(authority_, "causeway://*/worker/a"));
  ASSERT_TRUE(MakeChannelSecurity(options, server_->address(), absl::Now()).ok());
  const PemPair server = authority_.Issue(request);
  folder_.Write(absl::StrCat("client-", clients_, ".cert"), server.certificate);
  folder_.Write(absl::StrCat("client-", clients_, ".key"), server.key);
  EXPECT_THAT(ExplainByTls(server_->address(), options, absl::Seconds(10)),
              StatusIs(kFailedPrecondition));
}

TEST_F(IntrudersTest, WithACertificateThatNamesNoIdentity) {
  for (const std::string names :
       {"", "DNS:a", "URI:https://worker/a", "URI:causeway://*/worker/a,URI:causeway://*/worker/b",
        "URI:causeway://*/worker", "URI:causeway://*/king/a", "email:causeway://*/worker/a"}) {
    CertificateRequest request;
    request.names = names;
    Stubs stubs = With(Files(authority_.Issue(request)));
    EXPECT_THAT(Describe(stubs), StatusIs(kUnauthenticated)) << names;
    EXPECT_THAT(Attach(stubs, MakeJoin(run_.coordinator(), "a")), StatusIs(kUnauthenticated))
        << names;
  }
}

TEST_F(IntrudersTest, OfAnotherRun) {
  EXPECT_THAT(Describe(As("causeway://another/worker/a")),
              StatusIs(kFailedPrecondition, AllOf(HasSubstr("another"), HasSubstr(kRunName))));
  EXPECT_TRUE(Describe(As(absl::StrCat("causeway://", kRunName, "/worker/b"))).ok());
}

TEST_F(IntrudersTest, UnderTheIdOfAnotherWorker) {
  Stubs stubs = As("causeway://*/worker/b");
  EXPECT_TRUE(Describe(stubs).ok());
  ExpectDenied(Attach(stubs, MakeJoin(run_.coordinator(), "a")), "worker b");
  Delta delta = honest_->first_delta();
  ExpectDenied(PushDelta(*stubs.exchange, delta), "worker b");
  ExpectDenied(PullState(stubs, "a"), "worker b");
  ExpectDenied(PullState(stubs, ""), "worker b");
  // The worker's id is that of the lane, whatever its messages say.
  EXPECT_THAT(PlainLane(*stubs.exchange, kRunId, "b").Push(delta.header, delta.object),
              StatusIs(kPermissionDenied));
  // Under its own id it may ask; it is no member yet.
  delta.header.set_worker_id("b");
  EXPECT_THAT(std::string(PushDelta(*stubs.exchange, delta).message()), Not(HasSubstr("may")));
}

TEST_F(IntrudersTest, WhoDoesMoreThanHisRoleAllows) {
  struct Member {
    std::string role, name;
    bool looks, pulls;
  };
  for (const Member& member :
       {Member{"worker", "b", false, false}, Member{"observer", "eye", true, false},
        Member{"operator", "ops", true, true}}) {
    const std::string who = absl::StrCat(member.role, " ", member.name);
    Stubs stubs = As(absl::StrCat("causeway://*/", member.role, "/", member.name));
    const auto expect = [&](bool may, const absl::Status& status) {
      if (may) {
        EXPECT_TRUE(status.ok()) << who << ": " << status;
      } else {
        ExpectDenied(status, who);
      }
    };
    expect(true, Describe(stubs));
    expect(member.looks, GetStatus(stubs));
    const absl::Status events = Ask(stubs, &v1::Admin::Stub::ListEvents);
    // Nobody keeps any here.
    expect(member.looks, absl::IsUnimplemented(events) ? absl::OkStatus() : events);
    expect(member.pulls, PullState(stubs, ""));
    expect(false, PushDelta(*stubs.exchange, honest_->first_delta()));
    if (member.role == "worker") {
      expect(false, Ask(stubs, &v1::Admin::Stub::Pause));
      expect(false, Ask(stubs, &v1::Admin::Stub::Drain));
      continue;
    }
    expect(false, Attach(stubs, MakeJoin(run_.coordinator(), member.name)));
    if (member.role == "operator") continue;
    expect(false, PullState(stubs, member.name));
    expect(false, Ask(stubs, &v1::Admin::Stub::Pause));
    expect(false, Ask(stubs, &v1::Admin::Stub::Drain));
  }
}

TEST_F(IntrudersTest, OversizeMessages) {
  // Past the limits of this side's own channel.
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  const auto security = MakeChannelSecurity(
      Files(IssueIdentity(authority_, "causeway://*/worker/b")), server_->address(), absl::Now());
  const auto exchange = v1::Exchange::NewStub(
      grpc::CreateCustomChannel(server_->address(), security->Now().credentials, arguments));
  PlainLane lane(*exchange, kRunId, "b");
  lane.Chunk(1, 0, std::vector<uint8_t>(3 << 20, 'x'));
  EXPECT_THAT(lane.Finish(), StatusIs(kResourceExhausted));
}

TEST_F(IntrudersTest, MessagesThatNoWorkerSends) {
  Stubs stubs = As("causeway://*/worker/b");
  const auto refused = [&](auto fill) {
    PlainLane lane(*stubs.exchange, kRunId, "b");
    v1::LaneMessage message;
    fill(message);
    lane.Write(message);
    EXPECT_THAT(lane.Finish(), StatusIs(kInvalidArgument)) << message.ShortDebugString();
  };
  using M = v1::LaneMessage;
  refused([](M&) {});
  refused([](M& m) { m.mutable_control(); });
  refused([](M& m) { m.mutable_control()->mutable_greeting(); });
  refused([](M& m) { m.mutable_control()->mutable_announcement(); });
  refused([](M& m) { m.mutable_control()->mutable_acknowledgement()->set_chunks(5); });
  PlainLane mute(*stubs.exchange, nullptr);
  mute.Chunk(1, 0, std::vector<uint8_t>(10));
  EXPECT_THAT(mute.Finish(), StatusIs(kInvalidArgument)) << "no greeting";
  v1::Greeting greeting = PlainLane::MakeGreeting(kRunId, "b");
  greeting.set_lane(16);
  PlainLane beyond(*stubs.exchange, &greeting);
  EXPECT_THAT(beyond.Finish(), StatusIs(kInvalidArgument));
}

TEST_F(IntrudersTest, OversizeNames) {
  Stubs stubs = As("causeway://*/worker/b");
  ExpectDenied(Attach(stubs, MakeJoin(run_.coordinator(), std::string(500'000, 'b'))), "worker b");
  for (const bool device : {true, false}) {
    v1::WorkerMessage join = MakeJoin(run_.coordinator(), "b");
    if (device) join.mutable_join()->set_device(std::string(2000, 'd'));
    if (!device) join.mutable_join()->set_software_version(std::string(2000, 'd'));
    EXPECT_THAT(Attach(stubs, join), StatusIs(kInvalidArgument));
  }
  Stubs operator_stubs = As("causeway://*/operator/ops");
  v1::PauseRequest pause;
  pause.set_reason(std::string(5000, 'r'));
  EXPECT_THAT(Ask(operator_stubs, &v1::Admin::Stub::Pause, pause), StatusIs(kInvalidArgument));
  grpc::ClientContext large;
  large.AddMetadata("x-large", std::string(20'000, 'm'));
  v1::RunStatus status;
  EXPECT_EQ(operator_stubs.admin->GetStatus(&large, {}, &status).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// Connections that say nothing, or nonsense, instead of a TLS greeting.
// The server ends silent ones soon, but gives honest peers on a busy machine the time they need.
class ImpatientTest : public IntrudersTest {
 protected:
  ImpatientTest()
      : IntrudersTest([](CoordinatorServer::Options& options) {
          options.connections.handshake = absl::Seconds(4);
          options.join_timeout = absl::Seconds(2);
          // An honest worker does rounds without a pause for as long as that takes.
          options.max_requests_per_second = 1e6;
        }) {}
};

TEST_F(ImpatientTest, ASlowLorisAtTheDoor) {
  std::vector<RawConnection> crowd;
  for (int i = 0; i < 32; ++i) {
    crowd.emplace_back(server_->port());
    // A third is silent, a third begins a greeting and stops, a third talks about something else.
    ASSERT_TRUE(crowd.back().Send(i % 3 == 0   ? ""
                                  : i % 3 == 1 ? std::string("\x16\x03\x01\x02", 4)
                                               : "GET / HTTP/1.1\r\n\r\n"));
  }
  honest_->AwaitRounds(2);
  for (const RawConnection& connection : crowd) {
    while (!connection.IsEnded()) {  // The server hangs up, whatever it says before.
    }
  }
}

TEST_F(ImpatientTest, ASessionThatNeverJoins) {
  Stubs stubs = As("causeway://*/worker/b");
  EXPECT_THAT(Attach(stubs, std::nullopt), StatusIs(kDeadlineExceeded, HasSubstr("Join")));
}

// The clock of the limit stands still, so that the reserve is all there is.
class RequestLimitTest : public IntrudersTest {
 protected:
  RequestLimitTest()
      : IntrudersTest([this](CoordinatorServer::Options& options) { options.clock = &clock_; }, 0) {
  }
};

TEST_F(RequestLimitTest, WhoAsksTooOftenIsAskedToWait) {
  Stubs stubs = As("causeway://*/observer/eye");
  absl::Status status;
  int admitted = 0;
  while (status.ok() && admitted < 100'000) {
    status = Describe(stubs);
    admitted += status.ok() ? 1 : 0;
  }
  EXPECT_THAT(status, StatusIs(kResourceExhausted));
  EXPECT_EQ(admitted, 4000 / CostOf(Action::kDescribe));
  EXPECT_LE(4000 / CostOf(Action::kGetStatus), 400) << "a status is no heartbeat";
  EXPECT_THAT(Attach(stubs, std::nullopt), StatusIs(kResourceExhausted));
  // Another connection does not help.
  EXPECT_THAT(Describe(As("causeway://*/observer/eye")), StatusIs(kResourceExhausted));
  EXPECT_TRUE(Describe(As("causeway://*/observer/other")).ok());
  honest_->AwaitRounds(2);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Describe(stubs).ok());
}

TEST_F(RequestLimitTest, WhoTalksTooMuchInHisSessionIsPutOut) {
  Stubs stubs = As("causeway://*/worker/b");
  OpenSession session(*stubs.session, MakeJoin(run_.coordinator(), "b"));
  ASSERT_TRUE(session.welcome.has_value());
  v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_checkpoint_step(-1);
  // A few more may be on their way before the end is heard of.
  int said = 0;
  while (said < 100'000 && session.stream->Write(heartbeat)) ++said;
  EXPECT_GE(said, 3980);
  EXPECT_THAT(FromGrpcStatus(session.End()), StatusIs(kResourceExhausted));
  honest_->AwaitRounds(2);
}

TEST(ConnectionLimitsTest, LimitsThatCannotBeKeptAreRefusedAtTheStart) {
  SmallRun run;
  const auto start = [&](int total, int of_one) {
    return CoordinatorServer::Start({.address = "127.0.0.1:0",
                                     .max_connections = total,
                                     .max_connections_per_address = of_one},
                                    run.coordinator())
        .status();
  };
  EXPECT_THAT(start(-1, 0), StatusIs(kInvalidArgument));
  EXPECT_THAT(start(0, -1), StatusIs(kInvalidArgument));
  EXPECT_THAT(start(2'000'000'000, 0),
              StatusIs(kFailedPrecondition,
                       AllOf(HasSubstr("LimitNOFILE"), HasSubstr("--max_connections"))));
}

}  // namespace
}  // namespace causeway::server
