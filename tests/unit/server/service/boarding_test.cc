// How a member stays aboard once it was let in: renewal, the names that a machine has, and the ways
// that lead to the coordinator.
#include "common/client/boarding.h"

#include <memory>
#include <mutex>
#include <string>

#include "common/telemetry/log.h"
#include "gmock/gmock.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "tests/unit/common/rpc/connect_proxy.h"
#include "tests/unit/server/service/enrollment_run.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kDay = absl::Hours(24);

class BoardingTest : public EnrollmentTest {};

// A certificate is renewed in its last third: 31 days with the day before its making.
TEST_F(BoardingTest, AProcessThatRunsForLongHasItsCertificateRenewedOnceItIsDue) {
  const Boarded boarded = BoardIn("berlin", Invite("berlin")).value();
  const Certificate before = ReadCertificate(boarded.security.cert_file).value();
  clock_.Advance(absl::Hours(20));  // So the next one lasts longer than this one by as much.
  FakeClock members(before.not_after - 11 * kDay);
  {
    const IdentityKeeper keeper(boarded, members, absl::Milliseconds(1));
    members.Advance(kDay);
    events_.Await("certificate_renewed");
  }
  const Certificate after = ReadCertificate(boarded.security.cert_file).value();
  EXPECT_EQ(after.identity, before.identity);
  EXPECT_GE(after.not_after - before.not_after, absl::Hours(19));
  EXPECT_EQ(events_.Count("certificate_renewed"), 1) << "the new one is not due";
  EXPECT_TRUE(Describe(boarded).ok());
}

// The log's lines as events, by their level.
class LoggedEvents final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LoggedEvents(AwaitedEvents& lines) : lines_(lines) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& line) override {
    lines_.Record(line.level == spdlog::level::warn ? "warning" : "line",
                  std::string(line.payload.data(), line.payload.size()), nlohmann::json::object());
  }
  void flush_() override {}

 private:
  AwaitedEvents& lines_;
};

TEST_F(BoardingTest, ARenewalThatFailsIsSaidOnceAndTriedUntilTheCoordinatorIsBack) {
  const Boarded boarded = BoardIn("berlin", Invite("berlin")).value();
  FakeClock members(ReadCertificate(boarded.security.cert_file)->not_after - kDay);
  server_->Stop(absl::Seconds(5));
  server_ = nullptr;
  AwaitedEvents lines;
  SendLogTo(std::make_shared<LoggedEvents>(lines));
  {
    const IdentityKeeper keeper(boarded, members, absl::Milliseconds(1));
    EXPECT_THAT(lines.Await("warning")["message"].get<std::string>(),
                AllOf(HasSubstr(boarded.security.cert_file),
                      HasSubstr("is not renewed yet, and is tried again")));
    Serve();
    events_.Await("certificate_renewed");
  }
  server_->Stop(absl::Seconds(5));
  SendLogTo(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  EXPECT_THAT(lines.Messages("warning"), SizeIs(1));
  EXPECT_THAT(lines.Messages("line"), testing::Contains(HasSubstr("cert.pem is renewed")));
}

TEST_F(BoardingTest, MembersRenewTheirOwnNameAndInviteNobody) {
  const auto boarded = BoardIn("berlin", Invite("berlin")).value();
  const auto before = ReadCertificate(boarded.security.cert_file);
  EXPECT_FALSE(IsRenewalDue(*before, absl::Now()));
  EXPECT_TRUE(IsRenewalDue(*before, absl::Now() + absl::Hours(24 * 21)));
  // One that ends with its signer: whether there is another by now is worth a try a day.
  const absl::Time late = before->not_after - absl::Hours(1);
  Certificate bound = *before;
  EXPECT_TRUE(IsRenewalDue(bound, late, bound.not_after));
  bound.not_before = late - absl::Hours(25);
  EXPECT_FALSE(IsRenewalDue(bound, late, bound.not_after));
  clock_.Advance(absl::Hours(20));  // This machine's clock is as far behind.
  ASSERT_EQ(RenewIdentity(boarded, kPatience), absl::OkStatus());
  const auto after = ReadCertificate(boarded.security.cert_file);
  EXPECT_EQ(after->identity, before->identity);
  EXPECT_GE(after->not_after - before->not_after, absl::Hours(19));
  EXPECT_TRUE(Describe(boarded).ok());
  const absl::Status invites = Ask(boarded, Request("friend", "secret")).status();
  EXPECT_EQ(invites.code(), absl::StatusCode::kPermissionDenied) << invites;
}

TEST_F(BoardingTest, ARenewalBringsNoSoonerEnd) {
  const auto authority =
      OwnAuthority::Open({.folder = folder_.path("other"), .run_name = kRunName, .clock = &clock_})
          .value();
  const Identity operators{.run = kRunName, .role = Role::kOperator, .name = "local"};
  v1::EnrollRequest request;
  request.set_certificate_request(MakeRequest(MakePrivateKey().value(), "a new key").value());
  const auto days = [&](absl::Duration left) {
    const auto made = authority->Renew(operators, clock_.Now() + left, request).value();
    const absl::Time end = ParseCertificate(made.certificate(), "it")->not_after;
    return absl::ToDoubleHours(end - clock_.Now()) / 24;
  };
  EXPECT_NEAR(days(kDay), 30, 0.1);
  EXPECT_NEAR(days(100 * kDay), 100, 0.1);
  EXPECT_NEAR(days(36500 * kDay), 3650, 5) << "the authority's";
}

// A variable of this process's environment.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;

 private:
  const char* const name_;
};

TEST_F(BoardingTest, ARunsNameFindsTheOneNameThatHasTheRole) {
  const Variable config("XDG_CONFIG_HOME", folder_.path("config"));
  const auto board = [&](const std::string& join, const std::vector<Role>& roles) {
    return Board(join, "", kPatience, roles);
  };
  ASSERT_TRUE(board(FormatInvitation(Invite("berlin")), {}).ok());
  ASSERT_TRUE(board(FormatInvitation(Invite("alice", "operator")), {}).ok());
  EXPECT_EQ(board(kRunName, {Role::kWorker})->identity.name, "berlin");
  EXPECT_EQ(board(kRunName, {Role::kObserver, Role::kOperator})->identity.name, "alice");
  EXPECT_EQ(board(absl::StrCat(kRunName, "/alice"), {})->identity.name, "alice");
  for (const std::vector<Role>& roles : {std::vector<Role>{}, std::vector<Role>{Role::kRegion}}) {
    const absl::Status status = board(kRunName, roles).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has several names in the run"));
  }
}

TEST_F(BoardingTest, WhoIsToldToStopWaitsForNoCoordinator) {
  InvitationLine line = Invite("berlin");
  line.addresses = {"127.0.0.1:1"};
  int asked = 0;
  const absl::Status status =
      Board(FormatInvitation(line), folder_.path("berlin"), absl::InfiniteDuration(), {}, [&] {
        return ++asked == 2;
      }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(asked, 2);
}

TEST_F(BoardingTest, AFolderIsThatOfTheNameThatIsAskedFor) {
  ASSERT_TRUE(BoardIn("berlin", Invite("berlin")).ok());
  const auto board = [&](const std::string& join) {
    return Board(join, folder_.path("berlin"), kPatience).status();
  };
  EXPECT_EQ(board(kRunName), absl::OkStatus());
  EXPECT_EQ(board(absl::StrCat(kRunName, "/berlin\n")), absl::OkStatus());
  for (const std::string& other : {std::string("second"), absl::StrCat(kRunName, "/paris")}) {
    EXPECT_EQ(board(other).code(), absl::StatusCode::kFailedPrecondition) << other;
    EXPECT_THAT(std::string(board(other).message()),
                HasSubstr(absl::StrCat("worker berlin of the run guarded, not of ", other)));
  }
}

TEST_F(BoardingTest, TheProxyThatCallsGoThroughIsTheWayForAllOfIt) {
  InvitationLine line = Invite("berlin");
  InvitationLine over = Invite("paris");
  ASSERT_TRUE(Revoke("paris").ok());
  line.addresses = {"gone.invalid:7070", "hub.invalid:7070"};
  over.addresses = line.addresses;
  const ConnectProxy proxy({{"hub.invalid:7070", port_}});
  const auto boarded = BoardIn("berlin", line);
  ASSERT_TRUE(boarded.ok()) << boarded.status();
  EXPECT_EQ(RenewIdentity(*boarded, kPatience), absl::OkStatus());
  const absl::Status refused = BoardIn("paris", over).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(proxy.heads(), Each(AllOf(HasSubstr(".invalid:7070 HTTP/1."),
                                        HasSubstr("Basic dXNlcjpzZWNyZXQ=\r\n"))));
}

TEST_F(BoardingTest, AProxyThatLetsNobodyThroughIsNamed) {
  const InvitationLine line = Invite("berlin");
  const ConnectProxy proxy({});
  const absl::Status status = BoardIn("berlin", line, absl::Milliseconds(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("(https_proxy) answers CONNECT " + address_ + " with HTTP/1.1 502"));
}

}  // namespace
}  // namespace causeway::server
