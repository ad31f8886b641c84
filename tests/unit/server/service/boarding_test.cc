// How a member stays aboard once it was let in: renewal, the names that a machine has, and the ways
// that lead to the coordinator.
#include "common/client/boarding.h"

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/telemetry/log.h"
#include "gmock/gmock.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/connect_proxy.h"
#include "tests/unit/server/service/enrollment_run.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kDay = absl::Hours(24);

// Stands still, and counts how often a keeper looks at its certificate.
class WatchedClock final : public Clock {
 public:
  explicit WatchedClock(absl::Time now) : now_(now) {}
  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    ++looks_;
    return now_;
  }
  absl::Duration Monotonic() const override { return absl::ZeroDuration(); }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mutex_);
    now_ += by;
  }
  // Waits for the end of a look that begins from now on.
  void AwaitALook() const {
    absl::MutexLock lock(&mutex_);
    const int wanted = looks_ + 2;
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return looks_ >= wanted; };
    mutex_.Await(absl::Condition(&there));
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  mutable int looks_ ABSL_GUARDED_BY(mutex_) = 0;
};

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

class KeeperTest : public EnrollmentTest {
 protected:
  // A certificate is renewed in its last third: 31 days with the day before its making.
  KeeperTest()
      : boarded_(BoardIn("berlin", Invite("berlin")).value()),
        before_(ReadCertificate(boarded_.security.cert_file).value()),
        members_(before_.not_after - 11 * kDay) {}
  IdentityKeeper Keeper() { return IdentityKeeper(boarded_, members_, absl::Milliseconds(1)); }
  int Renewals() const { return events_.Count("certificate_renewed"); }
  // The coordinator is gone until it serves again, and the log's lines are events.
  void Lose() {
    server_->Stop();
    SendLogTo(std::make_shared<LoggedEvents>(lines_));
  }
  void ExpectTriedAgainAfter(absl::Duration pause) {
    Lose();
    {
      const IdentityKeeper keeper = Keeper();
      EXPECT_THAT(lines_.Await("warning")["message"].get<std::string>(),
                  AllOf(HasSubstr(boarded_.security.cert_file),
                        HasSubstr("is not renewed yet, and is tried again")));
      server_->Serve(Options());
      members_.AwaitALook();
      EXPECT_EQ(Renewals(), 0);
      members_.Advance(pause);
      events_.Await("certificate_renewed");
    }
    EXPECT_THAT(lines_.Messages("warning"), SizeIs(1));
    EXPECT_THAT(lines_.Messages("line"), Contains(HasSubstr("cert.pem is renewed")));
  }
  ~KeeperTest() override {
    server_->Stop();
    SendLogTo(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  }

  const Boarded boarded_;
  const Certificate before_;
  WatchedClock members_;
  AwaitedEvents lines_;
};

TEST_F(KeeperTest, ACertificateThatIsDueIsRenewedOnceWhileItsProcessRuns) {
  clock_.Advance(absl::Hours(20));  // So the next one lasts longer than this one by as much.
  {
    const IdentityKeeper keeper = Keeper();
    members_.AwaitALook();
    EXPECT_EQ(Renewals(), 0);
    members_.Advance(kDay);
    events_.Await("certificate_renewed");
    members_.AwaitALook();
    EXPECT_EQ(Renewals(), 1) << "the new one is not due";
  }
  const Certificate after = ReadCertificate(boarded_.security.cert_file).value();
  EXPECT_EQ(after.identity, before_.identity);
  EXPECT_GE(after.not_after - before_.not_after, absl::Hours(19));
  EXPECT_TRUE(Describe(boarded_).ok());
}

TEST_F(KeeperTest, ARenewalThatFailsIsTriedAndSaidOnceAnHour) {
  members_.Advance(kDay);
  ExpectTriedAgainAfter(absl::Hours(1));
}

TEST_F(KeeperTest, OnItsLastDayARenewalIsTriedMoreOften) {
  members_.Advance(10 * kDay + absl::Hours(1));
  ExpectTriedAgainAfter(absl::Minutes(5));
}

// Each try makes a certificate, and an event.
TEST_F(KeeperTest, ACertificateThatCannotBeWrittenIsNotAskedForAtEveryLook) {
  std::filesystem::create_directory(boarded_.security.cert_file + ".tmp");
  members_.Advance(kDay);
  const IdentityKeeper keeper = Keeper();
  events_.Await("certificate_renewed");
  members_.AwaitALook();
  members_.AwaitALook();
  EXPECT_EQ(Renewals(), 1);
  EXPECT_EQ(ReadCertificate(boarded_.security.cert_file)->fingerprint, before_.fingerprint);
}

class BoardingTest : public EnrollmentTest {};

TEST_F(BoardingTest, RenewalIsDueInTimeAndMembersInviteNobody) {
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
  EXPECT_THAT(Ask(boarded, Request("friend", "secret")), StatusIs(kPermissionDenied));
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
    EXPECT_THAT(board(kRunName, roles),
                StatusIs(kInvalidArgument, HasSubstr("has several names in the run")));
  }
}

TEST_F(BoardingTest, ProcessesThatBoardAtOnceByOneLineShareWhatComesOfIt) {
  const InvitationLine line = Invite("berlin");
  std::vector<absl::Status> boarded(4);
  std::vector<std::thread> processes;
  for (absl::Status& status : boarded) {
    processes.emplace_back([&] { status = BoardIn("new/berlin", line).status(); });
  }
  for (std::thread& process : processes) process.join();
  EXPECT_THAT(boarded, Each(absl::OkStatus()));
  EXPECT_EQ(events_.Count("invitation_used"), 1);
}

TEST_F(BoardingTest, WhoIsToldToStopWaitsForNoCoordinator) {
  InvitationLine line = Invite("berlin");
  line.addresses = {"127.0.0.1:1"};
  int asked = 0;
  const absl::Status status =
      Board(FormatInvitation(line), folder_.path("berlin"), absl::InfiniteDuration(), {}, [&] {
        return ++asked == 2;
      }).status();
  EXPECT_THAT(status, StatusIs(kCancelled));
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
    EXPECT_THAT(
        board(other),
        StatusIs(kFailedPrecondition,
                 HasSubstr(absl::StrCat("worker berlin of the run guarded, not of ", other))))
        << other;
  }
}

TEST_F(BoardingTest, TheProxyThatCallsGoThroughIsTheWayForAllOfIt) {
  InvitationLine line = Invite("berlin");
  InvitationLine over = Invite("paris");
  ASSERT_TRUE(Revoke("paris").ok());
  line.addresses = {"gone.invalid:7070", "hub.invalid:7070"};
  over.addresses = line.addresses;
  const ConnectProxy proxy({{"hub.invalid:7070", server_->port()}});
  const auto boarded = BoardIn("berlin", line);
  ASSERT_TRUE(boarded.ok()) << boarded.status();
  EXPECT_EQ(RenewIdentity(*boarded, kPatience), absl::OkStatus());
  EXPECT_THAT(BoardIn("paris", over), StatusIs(kPermissionDenied));
  EXPECT_GT(proxy.heads().size(), 2U);
  EXPECT_THAT(proxy.heads(), Each(AllOf(HasSubstr(".invalid:7070 HTTP/1."),
                                        HasSubstr("Basic dXNlcjpzZWNyZXQ=\r\n"))));
}

TEST_F(BoardingTest, AProxyThatLetsNobodyThroughIsNamed) {
  const InvitationLine line = Invite("berlin");
  const ConnectProxy proxy({});
  EXPECT_THAT(
      BoardIn("berlin", line, absl::Milliseconds(1)),
      StatusIs(kUnavailable,
               AllOf(HasSubstr("(https_proxy) answers CONNECT " + address() + " with HTTP/1.1 502"),
                     HasSubstr("unset https_proxy or add 127.0.0.1 itself to no_proxy"))));
}

}  // namespace
}  // namespace causeway::server
