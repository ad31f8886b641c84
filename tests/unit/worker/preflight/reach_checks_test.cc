#include "worker/preflight/checks.h"

#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
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
  EXPECT_THAT(JudgeGreeting("h:1", Greeting::kOther, false).finding, HasSubstr("another protocol"));
  for (const Greeting greeting :
       {Greeting::kHttp1, Greeting::kClosed, Greeting::kSilent, Greeting::kOther, Greeting::kTls}) {
    EXPECT_EQ(JudgeGreeting("h:1", greeting, false).status, CheckStatus::kFailed);
    EXPECT_THAT(JudgeGreeting("h:1", greeting, false).remedy,
                HasSubstr(greeting == Greeting::kTls ? "--tls_ca" : "check the address"));
  }
}

TEST(Reach, ANameIsWrittenWithAllItsAddresses) {
  const std::vector<TcpAddress> two = {Address("10.0.0.1:7070"), Address("[2001:db8::1]:7070")};
  const CheckResult result = JudgeNames("c.example.org:7070", two, absl::Milliseconds(3), {});
  EXPECT_EQ(result.status, CheckStatus::kOk);
  EXPECT_EQ(result.finding, "c.example.org:7070 is 10.0.0.1:7070, [2001:db8::1]:7070");
  const std::vector<TcpAddress> one = {two[0]};
  EXPECT_EQ(JudgeNames("10.0.0.1:7070", one, absl::ZeroDuration(), {}).finding, "10.0.0.1:7070");
  const CheckResult proxied =
      JudgeNames("10.0.0.1:7070", one, absl::ZeroDuration(),
                 {.used = true, .finding = "there is a proxy", .remedy = "unset it"});
  EXPECT_EQ(proxied.status, CheckStatus::kWarning);
  EXPECT_EQ(proxied.finding, "10.0.0.1:7070, but there is a proxy");
  EXPECT_EQ(proxied.remedy, "unset it");
  EXPECT_EQ(JudgeNames("x:1", absl::NotFoundError("no"), absl::ZeroDuration(), {}).status,
            CheckStatus::kFailed);
}

std::map<std::string, std::string> environment;
const char* Variable(const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : found->second.c_str();
}

ProxySetting Find(const std::string& host) {
  const std::vector<TcpAddress> addresses = {Address("10.1.2.3:7070")};
  return FindProxy(host, addresses, Variable);
}

TEST(Reach, AProxyIsFoundUnlessTheHostIsExceptedAndItsPasswordIsNotShown) {
  environment = {};
  EXPECT_FALSE(Find("c.example.org").used);
  EXPECT_EQ(Find("c.example.org").finding, "");
  environment = {{"https_proxy", "http://user:secret@proxy.example.org:3128/"},
                 {"http_proxy", "http://other:1"}};
  const ProxySetting proxy = Find("c.example.org");
  EXPECT_TRUE(proxy.used);
  EXPECT_EQ(proxy.address, "proxy.example.org:3128");
  EXPECT_EQ(proxy.credentials, "user:secret");
  EXPECT_EQ(proxy.finding, "connections go through the proxy proxy.example.org:3128 (https_proxy)");
  EXPECT_THAT(proxy.remedy, HasSubstr("add c.example.org itself to no_proxy"));
  EXPECT_THAT(proxy.remedy, Not(HasSubstr("secret")));
  environment["no_proxy"] = "localhost,example.org";
  EXPECT_FALSE(Find("c.example.org").used);
  EXPECT_TRUE(Find("c.example.net").used);
  environment["no_grpc_proxy"] = "elsewhere";
  EXPECT_TRUE(Find("c.example.org").used);
  environment = {{"grpc_proxy", ""}, {"https_proxy", "http://proxy"}};
  EXPECT_FALSE(Find("c.example.org").used) << "an empty variable says that there is no proxy";
  environment = {{"https_proxy", "http://me:p%40ss%2@proxy"}};
  EXPECT_EQ(Find("c.example.org").address, "proxy:80");
  EXPECT_EQ(Find("c.example.org").credentials, "me:p@ss%2");
  environment = {{"https_proxy", "http://me:se/cret@proxy"}};
  EXPECT_EQ(Find("c.example.org").finding, "https_proxy is no URL");
  EXPECT_EQ(Find("c.example.org").address, "");
}

// gRPC compares ends of names, whatever other programs do with the same list.
TEST(Reach, AnExceptionThatGrpcDoesNotUnderstandIsNamed) {
  for (const char* entry : {"10.0.0.0/8", "10.1.2.0/23", "*", "*.example.org", " example.org",
                            "c.example.org:7070", "C.Example.Org"}) {
    environment = {{"https_proxy", "http://proxy:1"},
                   {"no_proxy", absl::StrCat("localhost,", entry)}};
    const ProxySetting proxy = Find("c.example.org");
    EXPECT_TRUE(proxy.used) << entry;
    EXPECT_THAT(proxy.remedy, HasSubstr(absl::StrCat("\"", entry, "\" does not except it")));
  }
  for (const char* entry : {"10.1.4.0/24", "example.net", "other.example.org", "11.0.0.0/8"}) {
    environment = {{"https_proxy", "http://proxy:1"}, {"no_proxy", entry}};
    EXPECT_TRUE(Find("c.example.org").used) << entry;
    EXPECT_THAT(Find("c.example.org").remedy, Not(HasSubstr("does not except it"))) << entry;
  }
  environment = {{"https_proxy", "http://proxy:1"}, {"NO_PROXY", "example.org"}};
  EXPECT_THAT(Find("c.example.org").remedy, HasSubstr("\"NO_PROXY=example.org\" does not"));
}

TEST(Reach, AProxyOfAnotherKindIsNotUsedAndThatIsSaid) {
  environment = {{"https_proxy", "socks5://user:secret@proxy:1080"}};
  const ProxySetting socks = Find("c.example.org");
  EXPECT_FALSE(socks.used);
  EXPECT_THAT(socks.finding, HasSubstr("https_proxy is a proxy of socks5://, which gRPC does not"));
  EXPECT_THAT(socks.remedy, HasSubstr("https_proxy=http://HOST:PORT"));
  EXPECT_THAT(socks.hint, Not(HasSubstr("secret")));
  environment = {{"http_proxy", "proxy:3128"}};
  EXPECT_THAT(Find("c.example.org").finding, HasSubstr("http_proxy has no http://"));
  environment = {{"ALL_PROXY", "socks5h://proxy:1080"}};
  EXPECT_EQ(Find("c.example.org").remedy, "") << "where connections come about, nothing is wrong";
  EXPECT_THAT(Find("c.example.org").hint, HasSubstr("ALL_PROXY is not used"));
}

// Explains with a server that answers so: a proxy, or a coordinator, which sees a look before it.
std::string Explain(const std::string& answer, bool as_proxy) {
  const Listener listener;
  std::thread server([&] {
    const Socket first = as_proxy ? Socket(-1) : listener.Accept();
    const Socket peer = listener.Accept();
    char byte;
    EXPECT_GT(recv(peer.descriptor(), &byte, 1, 0), 0);
    EXPECT_EQ(send(peer.descriptor(), answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
    shutdown(peer.descriptor(), SHUT_WR);
    while (recv(peer.descriptor(), &byte, 1, 0) > 0) {
    }
  });
  environment = {};
  if (as_proxy) environment["https_proxy"] = absl::StrCat("http://", listener.address());
  std::string said = ExplainNoAnswer(as_proxy ? "192.0.2.7:7070" : listener.address(),
                                     /*uses_tls=*/false, Variable);
  server.join();
  return said;
}

TEST(Reach, WhyNobodyAnswersIsOneSentenceWithWhatToDo) {
  EXPECT_THAT(Explain("HTTP/1.1 400 Bad Request\r\n\r\n", /*as_proxy=*/false),
              HasSubstr("is a web server, not a coordinator: another program has this port"));
  EXPECT_EQ(Explain(std::string("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\100", 15), false), "");
  EXPECT_THAT(Explain("HTTP/1.1 403 Forbidden\r\n\r\n", /*as_proxy=*/true),
              HasSubstr("(https_proxy) answers CONNECT 192.0.2.7:7070 with HTTP/1.1 403 Forbidden: "
                        "if that is not meant, unset https_proxy or add 192.0.2.7 itself to "
                        "no_proxy"));
  EXPECT_THAT(Explain("HTTP/1.1 503 again in 200 s\r\n\r\n", /*as_proxy=*/true),
              HasSubstr("answers CONNECT 192.0.2.7:7070 with HTTP/1.1 503 again in 200 s"));
  EXPECT_THAT(Explain("HTTP/1.1 200 OK\r\n\r\n", /*as_proxy=*/true),
              HasSubstr("connections go through the proxy"));
  std::string closed;
  {
    const Listener gone;
    closed = gone.address();
  }
  environment = {{"https_proxy", absl::StrCat("http://", closed)}};
  EXPECT_THAT(
      ExplainNoAnswer("192.0.2.7:7070", false, Variable),
      HasSubstr(absl::StrCat("the proxy ", closed, " (https_proxy) refuses the connection")));
  environment = {{"all_proxy", "socks5://x:1"}};
  EXPECT_THAT(
      ExplainNoAnswer(closed, false, Variable),
      AllOf(HasSubstr(absl::StrCat(closed, " refuses the connection: nothing listens there")),
            HasSubstr("is the address right?"), HasSubstr("all_proxy is not used")));
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
