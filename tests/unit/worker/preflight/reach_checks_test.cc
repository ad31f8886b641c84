#include "worker/preflight/checks.h"

#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/tcp_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TcpAddress Address(const std::string& text) { return (*ResolveAddress(text))[0]; }

// An address at which nobody listens.
std::string Closed() { return Listener().address(); }

// Of the process: gRPC's channels read it, too.
class Reach : public ::testing::Test {
 protected:
  using Variables = std::map<std::string, std::string>;
  ~Reach() override { Set({}); }
  static void Set(const Variables& variables) {
    for (const char* const name :
         {"grpc_proxy", "https_proxy", "http_proxy", "all_proxy", "ALL_PROXY", "HTTPS_PROXY",
          "HTTP_PROXY", "no_grpc_proxy", "no_proxy", "NO_PROXY"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  static ProxySetting Find(const std::string& host) {
    const std::vector<TcpAddress> addresses = {Address("10.1.2.3:7070")};
    return FindProxy(host, addresses);
  }
};

TEST_F(Reach, AProxyIsFoundUnlessTheHostIsExceptedAndItsPasswordIsNotShown) {
  Set({});
  EXPECT_FALSE(Find("c.example.org").used);
  EXPECT_EQ(Find("c.example.org").finding, "");
  Set({{"https_proxy", "http://user:secret@proxy.example.org:3128/"},
       {"http_proxy", "http://other:1"}});
  const ProxySetting proxy = Find("c.example.org");
  EXPECT_TRUE(proxy.used);
  EXPECT_EQ(proxy.address, "proxy.example.org:3128");
  EXPECT_EQ(proxy.credentials, "user:secret");
  EXPECT_EQ(proxy.finding, "connections go through the proxy proxy.example.org:3128 (https_proxy)");
  EXPECT_THAT(proxy.remedy, HasSubstr("add c.example.org itself to no_proxy"));
  EXPECT_THAT(proxy.remedy, Not(HasSubstr("secret")));
  setenv("no_proxy", "localhost,example.org", 1);
  EXPECT_FALSE(Find("c.example.org").used);
  EXPECT_TRUE(Find("c.example.net").used);
  setenv("no_grpc_proxy", "elsewhere", 1);
  EXPECT_TRUE(Find("c.example.org").used);
  Set({{"grpc_proxy", ""}, {"https_proxy", "http://proxy"}});
  EXPECT_FALSE(Find("c.example.org").used) << "an empty variable says that there is no proxy";
  Set({{"https_proxy", "http://me:p%40ss%2@proxy"}});
  EXPECT_EQ(Find("c.example.org").address, "proxy:80");
  EXPECT_EQ(Find("c.example.org").credentials, "me:p@ss%2");
  Set({{"https_proxy", "http://me:se/cret@proxy"}});
  EXPECT_EQ(Find("c.example.org").finding, "https_proxy is no URL");
  EXPECT_EQ(Find("c.example.org").address, "");
}

// gRPC compares ends of names, whatever other programs do with the same list.
TEST_F(Reach, AnExceptionThatGrpcDoesNotUnderstandIsNamed) {
  for (const char* entry : {"10.0.0.0/8", "10.1.2.0/23", "*", "*.example.org", " example.org",
                            "c.example.org:7070", "C.Example.Org"}) {
    Set({{"https_proxy", "http://proxy:1"}, {"no_proxy", absl::StrCat("localhost,", entry)}});
    const ProxySetting proxy = Find("c.example.org");
    EXPECT_TRUE(proxy.used) << entry;
    EXPECT_THAT(proxy.remedy, HasSubstr(absl::StrCat("\"", entry, "\" does not except it")));
  }
  for (const char* entry : {"10.1.4.0/24", "example.net", "other.example.org", "11.0.0.0/8"}) {
    Set({{"https_proxy", "http://proxy:1"}, {"no_proxy", entry}});
    EXPECT_TRUE(Find("c.example.org").used) << entry;
    EXPECT_THAT(Find("c.example.org").remedy, Not(HasSubstr("does not except it"))) << entry;
  }
  Set({{"https_proxy", "http://proxy:1"}, {"NO_PROXY", "example.org"}});
  EXPECT_THAT(Find("c.example.org").remedy, HasSubstr("\"NO_PROXY=example.org\" does not"));
}

TEST_F(Reach, AProxyOfAnotherKindIsNotUsedAndThatIsSaid) {
  Set({{"https_proxy", "socks5://user:secret@proxy:1080"}});
  const ProxySetting socks = Find("c.example.org");
  EXPECT_FALSE(socks.used);
  EXPECT_THAT(socks.finding, HasSubstr("https_proxy is a proxy of socks5://, which gRPC does not"));
  EXPECT_THAT(socks.remedy, HasSubstr("https_proxy=http://HOST:PORT"));
  EXPECT_THAT(socks.hint, Not(HasSubstr("secret")));
  Set({{"http_proxy", "proxy:3128"}});
  EXPECT_THAT(Find("c.example.org").finding, HasSubstr("http_proxy has no http://"));
  Set({{"ALL_PROXY", "socks5h://proxy:1080"}});
  EXPECT_EQ(Find("c.example.org").remedy, "") << "where connections come about, nothing is wrong";
  EXPECT_THAT(Find("c.example.org").hint, HasSubstr("ALL_PROXY is not used"));
}

const std::string kSettings("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\100", 15);

// A server that answers everybody so once a byte has come, or at once without an answer, and then
// hangs up, or stays.
class Server {
 public:
  explicit Server(std::string answer, bool stays = false)
      : thread_([this, answer = std::move(answer), stays] {
          std::vector<Socket> kept;
          for (;;) {
            Socket peer = listener_.Accept();
            if (peer.descriptor() < 0) return;
            char byte;
            if (!answer.empty() && recv(peer.descriptor(), &byte, 1, 0) == 1) {
              send(peer.descriptor(), answer.data(), answer.size(), MSG_NOSIGNAL);
            }
            if (stays) {
              kept.push_back(std::move(peer));
              continue;
            }
            shutdown(peer.descriptor(), SHUT_WR);
            while (recv(peer.descriptor(), &byte, 1, 0) > 0) {
            }
          }
        }) {}
  ~Server() {
    shutdown(listener_.socket().descriptor(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return listener_.address(); }

 private:
  const Listener listener_;
  std::thread thread_;
};

TEST_F(Reach, TellsServersApartByTheirGreeting) {
  Set({});
  for (const auto& [answer, stays, finding, remedy] :
       {std::tuple(kSettings, false, "", ""),
        {"HTTP/1.1 400 Bad Request\r\n\r\n", false, " is a web server", "check the address"},
        {std::string("\x15\3\3\0\2\2\x46", 7), false, " wants TLS", "--tls_ca"},
        {"SSH-2.0-OpenSSH_9.2p1\r\n", false, " speaks another protocol", "check the address"},
        {std::string("\0\0\6\7\0\0\0\0\0", 9), false, " speaks another protocol", "address"},
        {std::string("\0\0\6\4\0\0\0\0\1", 9), false, " speaks another protocol", "address"},
        {std::string("\0\0\6\4", 4), false, " speaks another protocol", "check the address"},
        {"", false, " hangs up", "check the address"},
        {"", true, " says nothing", "or the coordinator hangs"}}) {
    const Server server(answer, stays);
    const Way way = FindWay(server.address(), /*uses_tls=*/false,
                            stays ? absl::Milliseconds(50) : absl::Seconds(20));
    const CheckResult judged = JudgeWay(way);
    EXPECT_THAT(way.finding, StartsWith(server.address()));
    EXPECT_THAT(way.finding, HasSubstr(finding));
    EXPECT_THAT(way.remedy, HasSubstr(remedy));
    EXPECT_EQ(judged.status, way.open ? CheckStatus::kOk : CheckStatus::kFailed);
    EXPECT_EQ(way.open, answer == kSettings) << finding;
    EXPECT_TRUE(FindWay(server.address(), /*uses_tls=*/true).open) << "TLS tells";
  }
}

TEST_F(Reach, AllAddressesAreTriedAndSilenceMeansAFirewallAndARefusalThatNobodyListens) {
  const Server server(kSettings);
  const std::vector<TcpAddress> places = {Address(Closed()), Address(server.address())};
  const auto way_to = [](std::span<const TcpAddress> some, absl::Duration patience) {
    return JudgeWay(FindWayTo("c.example.org:7070", some, /*uses_tls=*/false, patience));
  };
  const CheckResult partly = way_to(places, absl::Seconds(20));
  EXPECT_EQ(partly.status, CheckStatus::kWarning);
  EXPECT_EQ(partly.finding, absl::StrCat("c.example.org:7070 is ", server.address(), ", but ",
                                         places[0].ToString(), " refuses the connection"));
  EXPECT_THAT(partly.remedy, HasSubstr("the dead address"));
  const CheckResult none = way_to(std::span(places).first(1), absl::Seconds(20));
  EXPECT_EQ(none.status, CheckStatus::kFailed);
  EXPECT_EQ(none.finding, places[0].ToString() + " refuses the connection");
  EXPECT_THAT(none.remedy, HasSubstr("is causeway-coordinator running"));
  EXPECT_EQ(way_to(std::span(places).last(1), absl::Seconds(20)).status, CheckStatus::kOk);
  const Listener full;
  const std::vector<TcpAddress> place = {Address(full.address())};
  std::vector<Socket> waiting;  // One more than it lets wait: nobody hears of the next.
  for (int i = 0; i < 17; ++i) waiting.push_back(ConnectTo(place[0]));
  const CheckResult silent = way_to(place, absl::Milliseconds(50));
  EXPECT_EQ(silent.finding, full.address() + " does not answer");
  EXPECT_THAT(silent.remedy, HasSubstr("firewalls"));
}

TEST_F(Reach, ANameWithoutAnAddressAndAProxyThatLeadsThereAreJudged) {
  Set({});
  const CheckResult nowhere = JudgeWay(FindWay("nowhere.invalid:7070", false));
  EXPECT_EQ(nowhere.status, CheckStatus::kFailed);
  EXPECT_THAT(nowhere.finding, HasSubstr("nowhere.invalid"));
  EXPECT_THAT(nowhere.remedy, HasSubstr("check --coordinator"));
  EXPECT_EQ(ExplainNoAnswer("nowhere.invalid:7070", false), "");
  const Server proxy("HTTP/1.1 200 OK\r\n\r\n");
  Set({{"https_proxy", absl::StrCat("http://", proxy.address())}});
  const CheckResult proxied = JudgeWay(FindWay("192.0.2.7:7070", false));
  EXPECT_EQ(proxied.status, CheckStatus::kWarning);
  EXPECT_THAT(proxied.remedy, HasSubstr("unset https_proxy"));
  const Server coordinator(kSettings);
  Set({{"https_proxy", "socks5://proxy:1080"}});
  EXPECT_THAT(JudgeWay(FindWay(coordinator.address(), false)).finding,
              HasSubstr(absl::StrCat(coordinator.address(), ", but https_proxy is a proxy of")));
}

// Explains with a server that answers so: a proxy, or a coordinator.
std::string Explain(const std::string& answer, bool as_proxy) {
  const Server server(answer);
  unsetenv("https_proxy");
  if (as_proxy) setenv("https_proxy", absl::StrCat("http://", server.address()).c_str(), 1);
  return ExplainNoAnswer(as_proxy ? "192.0.2.7:7070" : server.address(), /*uses_tls=*/false);
}

TEST_F(Reach, WhyNobodyAnswersIsOneSentenceWithWhatToDo) {
  EXPECT_THAT(Explain("HTTP/1.1 400 Bad Request\r\n\r\n", /*as_proxy=*/false),
              HasSubstr("is a web server, not a coordinator: another program has this port"));
  EXPECT_EQ(Explain(kSettings, false), "");
  EXPECT_THAT(Explain("HTTP/1.1 403 Forbidden\r\n\r\n", /*as_proxy=*/true),
              HasSubstr("(https_proxy) answers CONNECT 192.0.2.7:7070 with HTTP/1.1 403 Forbidden: "
                        "if that is not meant, unset https_proxy or add 192.0.2.7 itself to "
                        "no_proxy"));
  EXPECT_THAT(Explain("HTTP/1.1 503 again in 200 s\r\n\r\n", /*as_proxy=*/true),
              HasSubstr("answers CONNECT 192.0.2.7:7070 with HTTP/1.1 503 again in 200 s"));
  EXPECT_THAT(Explain("HTTP/1.1 200 OK\r\n\r\n", /*as_proxy=*/true),
              HasSubstr("connections go through the proxy"));
  const std::string closed = Closed();
  Set({{"https_proxy", absl::StrCat("http://", closed)}});
  EXPECT_THAT(
      ExplainNoAnswer("192.0.2.7:7070", false),
      HasSubstr(absl::StrCat("the proxy ", closed, " (https_proxy) refuses the connection")));
  Set({{"all_proxy", "socks5://x:1"}});
  EXPECT_THAT(
      ExplainNoAnswer(closed, false),
      AllOf(HasSubstr(absl::StrCat(closed, " refuses the connection: nothing listens there")),
            HasSubstr("is the address right?"), HasSubstr("all_proxy is not used")));
}

TEST_F(Reach, CertificatesAreWarnedAboutAWeekBeforeTheirEnd) {
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
  EXPECT_EQ(JudgeCertificates(absl::UnavailableError("closed"), own, "me.pem", now).status,
            CheckStatus::kFailed);
  server.not_after = now + absl::Hours(10);
  EXPECT_THAT(JudgeCertificates(server, own, "me.pem", now).remedy, HasSubstr("operator"));
}

}  // namespace
}  // namespace causeway::worker
