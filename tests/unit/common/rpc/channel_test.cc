#include "common/rpc/channel.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/tcp_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/connect_proxy.h"

namespace causeway {
namespace {

// Knows no method.
class GenericServer {
 public:
  GenericServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  int port() const { return port_; }

 private:
  grpc::CallbackGenericService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Makes a call with a callback.
void CallOver(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  absl::Notification ended;
  stub.UnaryCall(&context, "/none", {}, &request, &response,
                 [&ended](const grpc::Status&) { ended.Notify(); });
  ended.WaitForNotification();
}

TEST(MakeChannel, NothingOfGrpcEndsWithTheLastChannel) {
  CallOver(MakeChannel("127.0.0.1:1", 0, ChannelSecurity::Plaintext()));
  EXPECT_EQ(grpc_is_initialized(), 1);
  int serve_callbacks = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream comm(thread.path() / "comm");
    std::getline(comm, name);
    if (name == "nexting_thread") ++serve_callbacks;  // As gRPC 1.51 calls them.
  }
  EXPECT_GT(serve_callbacks, 0);
}

TEST(ChannelTarget, OneAddressStaysAsItIsAndSeveralAreAListOfOneFamily) {
  EXPECT_EQ(ChannelTarget("coordinator.example:7070").value(), "coordinator.example:7070");
  EXPECT_EQ(ChannelTarget("127.0.0.1:7070,127.0.0.2:7071").value(),
            "ipv4:127.0.0.1:7070,127.0.0.2:7071");
  EXPECT_EQ(ChannelTarget("[::1]:7070,127.0.0.1:7071").value(),
            "ipv6:[::1]:7070,[::ffff:127.0.0.1]:7071");
  EXPECT_EQ(ChannelTarget("127.0.0.1:7070,").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ChannelTarget("127.0.0.1").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChannelTarget, NamesWithoutAnAddressMayGetOne) {
  EXPECT_EQ(ChannelTarget("a.invalid:7070,127.0.0.1:7071").value(), "ipv4:127.0.0.1:7071");
  const absl::Status none = ChannelTarget("a.invalid:7070,b.invalid:7070").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.message()), testing::HasSubstr("a.invalid"));
}

TEST(ChannelTarget, AChannelGoesToTheAddressThatAnswers) {
  int nobody = 0;
  {
    const Listener gone;
    nobody = gone.port();
  }
  const GenericServer server;
  const int port = server.port();
  const std::string target =
      ChannelTarget(absl::StrCat("127.0.0.1:", nobody, ",127.0.0.1:", port)).value();
  const auto channel = MakeChannel(target, 0, ChannelSecurity::Plaintext());
  EXPECT_TRUE(channel->WaitForConnected(gpr_inf_future(GPR_CLOCK_REALTIME)));
  // gRPC would ask the proxy for the list, though each of it is excepted.
  const ConnectProxy proxy({});
  setenv("no_proxy", "127.0.0.1", 1);
  EXPECT_EQ(ChannelTarget(absl::StrCat("127.0.0.1:", nobody, ",127.0.0.1:", port)).value(), target);
  const auto again = MakeChannel(target, 1, ChannelSecurity::Plaintext());
  EXPECT_TRUE(again->WaitForConnected(gpr_inf_future(GPR_CLOCK_REALTIME)));
  unsetenv("no_proxy");
  EXPECT_TRUE(proxy.heads().empty());
}

TEST(ChannelTarget, ThroughAProxyItIsTheFirstOfAListThatAnswers) {
  const Listener listener;
  const ConnectProxy proxy({{"hub.invalid:7070", listener.port()}});
  EXPECT_EQ(ChannelTarget("gone.invalid:7070,hub.invalid:7070").value(), "hub.invalid:7070");
  ASSERT_EQ(proxy.heads().size(), 2U);
  EXPECT_EQ(proxy.heads()[1],
            "CONNECT hub.invalid:7070 HTTP/1.1\r\nHost: hub.invalid:7070\r\n"
            "Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n\r\n");
  const TcpAddress end = OtherEndsOf("hub.invalid:7070")->front();
  EXPECT_EQ(absl::StrCat("http://user:secret@", end.ToString()), std::getenv("https_proxy"));
}

// As gRPC itself has it: what is said of proxies is judged by FindProxy.
TEST(MakeChannel, GoesThroughTheProxyThatFindProxyFinds) {
  const GenericServer server;
  const std::string address = absl::StrCat("127.0.0.1:", server.port());
  using Variables = std::vector<std::pair<const char*, const char*>>;  // nullptr: this proxy.
  const std::pair<Variables, bool> rows[] = {
      {{{"https_proxy", nullptr}}, true},
      {{{"https_proxy", nullptr}, {"no_proxy", "127.0.0.0/8,localhost"}}, true},
      {{{"https_proxy", nullptr}, {"no_proxy", "*"}}, true},
      {{{"http_proxy", nullptr}}, true},
      {{{"https_proxy", nullptr}, {"no_proxy", "127.0.0.1"}}, false},
      {{{"https_proxy", nullptr}, {"grpc_proxy", ""}}, false},
      {{{"https_proxy", nullptr}, {"no_proxy", "elsewhere"}, {"no_grpc_proxy", "0.0.1"}}, false},
      {{{"https_proxy", "socks5://127.0.0.1:1080"}}, false}};
  int connection = 0;
  for (const auto& [variables, is_used] : rows) {
    const ConnectProxy proxy({});
    const std::string url = std::getenv("https_proxy");
    unsetenv("https_proxy");
    for (const auto& [name, value] : variables) setenv(name, value ? value : url.c_str(), 1);
    SCOPED_TRACE(variables.back().first);
    const std::vector<TcpAddress> ends = ResolveAddress(address).value();
    EXPECT_EQ(FindProxy("127.0.0.1", ends).used, is_used);
    const auto channel = MakeChannel(address, ++connection, ChannelSecurity::Plaintext());
    CallOver(channel);
    EXPECT_EQ(!proxy.heads().empty(), is_used);
    for (const auto& [name, value] : variables) unsetenv(name);
  }
}

TEST(RenewedChannels, ThroughAProxyItGoesToTheNextOfAListOnceOneIsGone) {
  const GenericServer server;
  const ConnectProxy proxy({{"spare.invalid:7070", server.port()}});
  RenewedChannels channel("hub.invalid:7070",
                          SecurityTo("hub.invalid:7070,spare.invalid:7070", "hub.invalid:7070",
                                     ChannelSecurity::Plaintext()));
  const std::shared_ptr<grpc::Channel> gone = channel.Now();
  for (auto state = gone->GetState(/*try_to_connect=*/true);
       state != GRPC_CHANNEL_TRANSIENT_FAILURE; state = gone->GetState(false)) {
    gone->WaitForStateChange(state, gpr_inf_future(GPR_CLOCK_REALTIME));
  }
  const std::shared_ptr<grpc::Channel> next = channel.Now();
  EXPECT_TRUE(next->WaitForConnected(gpr_inf_future(GPR_CLOCK_REALTIME)));
  EXPECT_EQ(channel.Now(), next);
}

}  // namespace
}  // namespace causeway
