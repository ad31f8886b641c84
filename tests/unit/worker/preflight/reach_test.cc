#include "worker/preflight/reach.h"

#include <map>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(20);

TcpAddress Address(const std::string& text) { return (*ResolveAddress(text))[0]; }

// Greets a server that accepts once and sends `answer`.
Greeting GreetServer(const std::string& answer, bool hang_up) {
  const Listener listener;
  std::thread server([&] {
    Socket peer = listener.Accept();
    if (!answer.empty()) {
      EXPECT_EQ(send(peer.descriptor(), answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
    }
    if (hang_up) {
      shutdown(peer.descriptor(), SHUT_WR);
    }
    char byte;
    while (recv(peer.descriptor(), &byte, 1, 0) > 0) {
    }
  });
  const Greeting greeting = Greet(Address(listener.address()),
                                  answer.empty() && !hang_up ? absl::Milliseconds(50) : kLong);
  server.join();
  return greeting;
}

TEST(Reach, TellsServersApartByTheirGreeting) {
  EXPECT_EQ(GreetServer(std::string("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\100", 15), false),
            Greeting::kHttp2);
  EXPECT_EQ(GreetServer("HTTP/1.1 400 Bad Request\r\n\r\n", true), Greeting::kHttp1);
  EXPECT_EQ(GreetServer(std::string("\x15\3\3\0\2\2\x46", 7), true), Greeting::kTls);
  EXPECT_EQ(GreetServer("SSH-2.0-OpenSSH_9.2p1\r\n", false), Greeting::kOther);
  EXPECT_EQ(GreetServer("", true), Greeting::kClosed);
  EXPECT_EQ(GreetServer("", false), Greeting::kSilent);
}

TEST(Reach, AGreetingThatIsNoSettingsFrameIsNoHttp2) {
  EXPECT_EQ(ClassifyGreeting(absl::string_view("\0\0\6\7\0\0\0\0\0", 9), false), Greeting::kOther);
  EXPECT_EQ(ClassifyGreeting(absl::string_view("\0\0\6\4\0\0\0\0\1", 9), false), Greeting::kOther);
  EXPECT_EQ(ClassifyGreeting(absl::string_view("\0\0\6\4", 4), true), Greeting::kOther);
}

TEST(Reach, ConnectsToAllAddressesAtOnceAndSaysWhichRefuse) {
  const Listener listener;
  TcpAddress closed;
  {
    const Listener gone;
    closed = Address(gone.address());
  }
  const std::vector<TcpAddress> addresses = {closed, Address(listener.address())};
  const std::vector<ConnectAttempt> attempts = ConnectToAll(addresses, kLong);
  ASSERT_THAT(attempts, SizeIs(2));
  EXPECT_EQ(attempts[0].status.message(), "refuses the connection");
  EXPECT_TRUE(attempts[1].status.ok());

  const CheckResult partly = JudgeConnections(attempts);
  EXPECT_EQ(partly.status, CheckStatus::kWarning);
  EXPECT_THAT(partly.finding, HasSubstr(closed.ToString() + " refuses the connection"));
  const CheckResult none = JudgeConnections(std::span(attempts).first(1));
  EXPECT_EQ(none.status, CheckStatus::kFailed);
  EXPECT_THAT(none.remedy, HasSubstr("is causeway-coordinator running"));
  EXPECT_EQ(JudgeConnections(std::span(attempts).last(1)).status, CheckStatus::kOk);
}

TEST(Reach, SilenceMeansAFirewallAndARefusalMeansNobodyListens) {
  const TcpAddress address = Address("10.0.0.1:7070");
  const ConnectAttempt silent = {address, absl::DeadlineExceededError("does not answer"), kLong};
  const CheckResult result = JudgeConnections(std::vector{silent});
  EXPECT_EQ(result.finding, "10.0.0.1:7070 does not answer");
  EXPECT_THAT(result.remedy, HasSubstr("firewalls"));
}

TEST(Reach, AGreetingSaysWhatToDo) {
  EXPECT_EQ(JudgeGreeting("h:1", Greeting::kHttp2, false).status, CheckStatus::kOk);
  EXPECT_THAT(JudgeGreeting("h:1", Greeting::kClosed, true).remedy, HasSubstr("--tls_ca"));
  EXPECT_THAT(JudgeGreeting("h:1", Greeting::kTls, false).finding, HasSubstr("wants TLS"));
  EXPECT_THAT(JudgeGreeting("h:1", Greeting::kHttp1, false).finding, HasSubstr("web server"));
  EXPECT_THAT(JudgeGreeting("h:1", Greeting::kClosed, false).finding, HasSubstr("hangs up"));
  EXPECT_THAT(JudgeGreeting("h:1", Greeting::kSilent, false).finding, HasSubstr("says nothing"));
  for (const Greeting greeting :
       {Greeting::kHttp1, Greeting::kClosed, Greeting::kSilent, Greeting::kOther, Greeting::kTls}) {
    EXPECT_EQ(JudgeGreeting("h:1", greeting, false).status, CheckStatus::kFailed);
    EXPECT_NE(JudgeGreeting("h:1", greeting, false).remedy, "");
  }
}

TEST(Reach, ANameIsWrittenWithAllItsAddresses) {
  const std::vector<TcpAddress> two = {Address("10.0.0.1:7070"), Address("[2001:db8::1]:7070")};
  const CheckResult result = JudgeNames("c.example.org:7070", two, absl::Milliseconds(3), "");
  EXPECT_EQ(result.status, CheckStatus::kOk);
  EXPECT_EQ(result.finding, "c.example.org:7070 is 10.0.0.1:7070, [2001:db8::1]:7070");
  const std::vector<TcpAddress> one = {two[0]};
  EXPECT_EQ(JudgeNames("10.0.0.1:7070", one, absl::ZeroDuration(), "").finding, "10.0.0.1:7070");
  EXPECT_EQ(JudgeNames("10.0.0.1:7070", one, absl::ZeroDuration(), "http_proxy").status,
            CheckStatus::kWarning);
  EXPECT_EQ(JudgeNames("x:1", absl::NotFoundError("no"), absl::ZeroDuration(), "").status,
            CheckStatus::kFailed);
}

std::map<std::string, std::string> environment;
const char* Variable(const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : found->second.c_str();
}

TEST(Reach, AProxyIsFoundUnlessTheHostIsExceptedAndItsPasswordIsNotShown) {
  environment = {};
  EXPECT_EQ(FindProxy("c.example.org", Variable), "");
  environment = {{"https_proxy", "http://user:secret@proxy:3128"}};
  EXPECT_EQ(FindProxy("c.example.org", Variable), "https_proxy");
  environment["no_proxy"] = "localhost, example.org";
  EXPECT_EQ(FindProxy("c.example.org", Variable), "");
  EXPECT_EQ(FindProxy("c.example.net", Variable), "https_proxy");
}

TEST(Reach, CertificatesAreWarnedAboutAWeekBeforeTheirEnd) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  Certificate server;
  server.not_after = now + absl::Hours(24 * 90);
  Certificate own = server;
  EXPECT_EQ(JudgeCertificates(server, own, "me.pem", now).status, CheckStatus::kOk);
  EXPECT_THAT(JudgeCertificates(server, std::nullopt, "", now).finding, Not(HasSubstr("site's")));
  own.not_after = now + absl::Hours(24 * 3);
  const CheckResult soon = JudgeCertificates(server, own, "me.pem", now);
  EXPECT_EQ(soon.status, CheckStatus::kWarning);
  EXPECT_THAT(soon.remedy, HasSubstr("me.pem"));
  server.not_after = now + absl::Hours(10);
  EXPECT_THAT(JudgeCertificates(server, own, "me.pem", now).remedy, HasSubstr("operator"));
}

}  // namespace
}  // namespace causeway::worker
