#include "server/service/unary_services.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/loopback.h"

namespace causeway::server {
namespace {

class WorkerLinksTest : public ::testing::Test {
 protected:
  // A connection to the listener, both ends, and its peer as gRPC would write it.
  struct Connection {
    Socket client;
    Socket accepted;
    std::string peer;
  };
  Connection Connect() {
    Socket client = ConnectTo((*ResolveAddress(listener_.address()))[0]);
    Socket accepted = listener_.Accept();
    sockaddr_storage local = {};
    socklen_t length = sizeof(local);
    getsockname(client.descriptor(), reinterpret_cast<sockaddr*>(&local), &length);
    const std::string peer = absl::StrCat("ipv4:", FromSocketAddress(local)->ToString());
    return {std::move(client), std::move(accepted), peer};
  }
  v1::CoordinatorLink Find(const std::string& worker_id) {
    v1::RunStatus status;
    status.add_workers()->set_worker_id(worker_id);
    links_.AddTo(status);
    return status.workers(0).coordinator_link();
  }

  const Listener listener_;
  WorkerLinks links_;
};

TEST_F(WorkerLinksTest, NamesThatNobodyHasTakeNoRoom) {
  const Connection a = Connect();
  const std::string endless(65, 'x');
  links_.Note(endless, a.peer);
  links_.Sample(listener_.port());
  EXPECT_EQ(Find(endless).connections(), 0);
  // Connections that are none any more.
  for (int i = 0; i < 1024; ++i) links_.Note(absl::StrCat("made-up-", i), "ipv4:192.0.2.1:1");
  links_.Sample(listener_.port());
  links_.Note("a", a.peer);
  links_.Sample(listener_.port());
  EXPECT_EQ(Find("a").connections(), 1);
}

TEST_F(WorkerLinksTest, EveryWorkerHasTheConnectionsThatItsCallsCameFrom) {
  Connection a = Connect();
  const Connection b1 = Connect();
  const Connection b2 = Connect();
  const Connection nobody = Connect();
  a.client.SendAll(500);
  a.accepted.ReceiveAll(500);
  b1.client.SendAll(30);
  b2.client.SendAll(4);
  b1.accepted.ReceiveAll(30);
  b2.accepted.ReceiveAll(4);
  links_.Note("a", a.peer);
  links_.Note("b", b1.peer);
  links_.Note("b", b2.peer);
  links_.Note("b", b2.peer);
  links_.Note("b", "unix:/tmp/socket");
  EXPECT_EQ(Find("a").connections(), 0);  // Not sampled yet.
  links_.Sample(listener_.port());
  EXPECT_EQ(Find("a").connections(), 1);
  EXPECT_EQ(Find("a").received_bytes(), 500);
  EXPECT_EQ(Find("b").connections(), 2);
  EXPECT_EQ(Find("b").received_bytes(), 34);
  EXPECT_GT(Find("b").rtt_seconds(), 0);
  EXPECT_NE(Find("b").congestion_control(), "");
  EXPECT_EQ(Find("c").connections(), 0);
  a.accepted.Close();
  a.client.Close();
  links_.Sample(listener_.port());
  EXPECT_EQ(Find("a").connections(), 0);
  EXPECT_EQ(Find("a").received_bytes(), 500) << "what ended still counts";
}

}  // namespace
}  // namespace causeway::server
