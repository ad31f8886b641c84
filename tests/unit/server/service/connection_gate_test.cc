#include "server/service/connection_listener.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

TcpAddress At(const std::string& ip) {
  const bool ipv4 = ip.find('.') != std::string::npos;
  return *ParseGrpcPeer(ipv4 ? absl::StrCat("ipv4:", ip, ":7") : absl::StrCat("ipv6:[", ip, "]:7"));
}

// Enters so often until it is refused.
int Fill(ConnectionGate& gate, const TcpAddress& from) {
  int entered = 0;
  while (gate.Enter(from).ok()) ++entered;
  return entered;
}

TEST(ConnectionGateTest, OneAddressGetsItsShareAndNoMore) {
  ConnectionGate gate({.total = 10, .per_network = 3, .for_members = 0});
  EXPECT_EQ(Fill(gate, At("10.0.0.1")), 3);
  EXPECT_EQ(Fill(gate, At("10.0.0.2")), 3);
  EXPECT_THAT(std::string(gate.Enter(At("10.0.0.1")).message()),
              HasSubstr("--max_connections_per_address"));
  EXPECT_EQ(gate.connections(), 6);
}

TEST(ConnectionGateTest, AllAddressesTogetherGetTheTotal) {
  ConnectionGate gate({.total = 10, .per_network = 4, .for_members = 0});
  EXPECT_EQ(Fill(gate, At("10.0.0.1")), 4);
  EXPECT_EQ(Fill(gate, At("10.0.0.2")), 4);
  EXPECT_EQ(Fill(gate, At("10.0.0.3")), 2);
  const absl::Status refused = gate.Enter(At("10.0.0.4"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--max_connections"));
}

TEST(ConnectionGateTest, WhoLeavesMakesRoom) {
  ConnectionGate gate({.total = 2, .per_network = 2, .for_members = 0});
  EXPECT_EQ(Fill(gate, At("10.0.0.1")), 2);
  gate.Leave(At("10.0.0.1"));
  EXPECT_TRUE(gate.Enter(At("10.0.0.2")).ok());
  EXPECT_FALSE(gate.Enter(At("10.0.0.2")).ok());
  gate.Leave(At("10.0.0.3"));  // Nobody was there.
  EXPECT_EQ(gate.connections(), 2);
}

TEST(ConnectionGateTest, StrangersDoNotGetWhatIsKeptForThoseWhoTookPart) {
  ConnectionGate gate({.total = 8, .per_network = 8, .for_members = 2});
  EXPECT_EQ(Fill(gate, At("10.0.0.9")), 6);
  EXPECT_FALSE(gate.Enter(At("10.0.0.1")).ok());
  gate.Know(At("10.0.0.1"));
  EXPECT_EQ(Fill(gate, At("10.0.0.1")), 2);
}

TEST(ConnectionGateTest, TheAddressesOfOneIpv6SiteAreOne) {
  ConnectionGate gate({.total = 10, .per_network = 2, .for_members = 0});
  EXPECT_TRUE(gate.Enter(At("2001:db8:0:1::1")).ok());
  EXPECT_TRUE(gate.Enter(At("2001:db8:0:1::2")).ok());
  EXPECT_FALSE(gate.Enter(At("2001:db8:0:1:ffff::3")).ok());
  EXPECT_TRUE(gate.Enter(At("2001:db8:0:2::1")).ok());
}

constexpr int64_t kMuch = int64_t{512} << 10;

// A watch looks at a connection at so many milliseconds, and finds this.
struct Look {
  int64_t at_ms;
  int64_t received_bytes;
  bool known;
  bool ends;  // It is to be ended.
  bool reads = true;
};

void ExpectJudged(const std::vector<Look>& looks) {
  ConnectionWatch watch;
  for (const Look& look : looks) {
    EXPECT_EQ(watch.Judge({.received_bytes = look.received_bytes, .reads = look.reads}, look.known,
                          absl::Milliseconds(look.at_ms)) != "",
              look.ends)
        << look.at_ms;
  }
}

TEST(ConnectionWatch, WhoSendsMuchWithoutAnAdmittedCallIsEnded) {
  ExpectJudged(
      {{1000, kMuch, false, false}, {1900, kMuch, false, false}, {2000, kMuch, false, true}});
}

TEST(ConnectionWatch, ACallThatIsAdmittedInTimeClearsIt) {
  ExpectJudged({{1000, kMuch, false, false},
                {2000, 2 * kMuch, true, false},
                {60'000, 3 * kMuch, true, false}});
}

TEST(ConnectionWatch, AStrangerWhoSendsMoreThanAnyClientCanIsEndedAtOnce) {
  constexpr int64_t kMost = ConnectionWatch::kMostStrangerBytes;
  ExpectJudged({{1000, kMost, false, false},
                {1000, 9 * kMost, true, false},
                {1000, kMost + 1, false, true}});
}

TEST(ConnectionWatch, WhoAsksAndDoesNotReadIsEnded) {
  ExpectJudged({{1000, kMuch, true, false, false},
                {1500, 2 * kMuch, true, false, false},
                {2000, 2 * kMuch, true, true, false}});
}

TEST(ConnectionWatch, WhoIsSlowOrSilentOrShakesHandsForLongIsNot) {
  std::vector<Look> slow, silent, handshake;
  for (int64_t i = 0; i < 60; ++i) {
    slow.push_back({500 * i, i * kMuch, true, false, i % 2 == 0});  // Now and then it reads.
    silent.push_back({1000 * i, kMuch, true, false, false});
    handshake.push_back({1000 * i, ConnectionWatch::kStrangerBytes, false, false});
  }
  for (const auto& looks : {slow, silent, handshake}) ExpectJudged(looks);
}

}  // namespace
}  // namespace causeway::server
