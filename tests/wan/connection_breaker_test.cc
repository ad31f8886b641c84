#include "tests/wan/connection_breaker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace causeway::wan {
namespace {

constexpr TcpEndpoints kUp = {1, 2, 40000, 7070};

TcpHeader Packet(const TcpEndpoints& endpoints, uint32_t acknowledged) {
  return {.endpoints = endpoints, .sequence = 10, .acknowledged = acknowledged};
}

TcpHeader HeaderOf(const ConnectionBreaker::Reset& reset) {
  return *ParseFrame(reset.frame).value().tcp;
}

TEST(ConnectionBreakerTest, BothEndsAreResetAtWhatTheyExpectNext) {
  ConnectionBreaker breaker;
  EXPECT_FALSE(breaker.Observe(End::kNear, Packet(kUp, 100)).drop);
  EXPECT_FALSE(breaker.Observe(End::kFar, Packet(kUp.Reversed(), 500)).drop);
  EXPECT_FALSE(breaker.Observe(End::kNear, Packet(kUp, 170)).drop);
  const auto resets = breaker.BreakAll();
  ASSERT_EQ(resets.size(), 2U);
  EXPECT_EQ(breaker.connections_broken(), 1);
  for (const auto& reset : resets) {
    const TcpHeader header = HeaderOf(reset);
    EXPECT_TRUE(header.reset);
    EXPECT_EQ(header.endpoints, reset.to == End::kNear ? kUp.Reversed() : kUp);
    EXPECT_EQ(header.sequence, reset.to == End::kNear ? 170U : 500U);
  }
}

TEST(ConnectionBreakerTest, EndThatExpectedALaterByteIsResetThere) {
  ConnectionBreaker breaker;
  breaker.Observe(End::kNear, Packet(kUp, 100));
  breaker.BreakAll();
  const auto verdict = breaker.Observe(End::kNear, Packet(kUp, 180));
  EXPECT_TRUE(verdict.drop);
  ASSERT_EQ(verdict.resets.size(), 1U);
  EXPECT_EQ(HeaderOf(verdict.resets[0]).sequence, 180U);
  EXPECT_TRUE(breaker.Observe(End::kFar, Packet(kUp.Reversed(), 1)).drop);
}

TEST(ConnectionBreakerTest, ResetOfABrokenConnectionIsNotAnswered) {
  ConnectionBreaker breaker;
  breaker.Observe(End::kNear, Packet(kUp, 100));
  breaker.BreakAll();
  TcpHeader reset = Packet(kUp, 100);
  reset.reset = true;
  const auto verdict = breaker.Observe(End::kNear, reset);
  EXPECT_TRUE(verdict.drop);
  EXPECT_TRUE(verdict.resets.empty());
}

TEST(ConnectionBreakerTest, NewConnectionsPass) {
  ConnectionBreaker breaker;
  breaker.Observe(End::kNear, Packet(kUp, 100));
  breaker.BreakAll();
  TcpEndpoints other = kUp;
  other.source_port = 40001;
  EXPECT_FALSE(breaker.Observe(End::kNear, Packet(other, 1)).drop);
  TcpHeader same_ports = Packet(kUp, 0);
  same_ports.syn = true;
  EXPECT_FALSE(breaker.Observe(End::kNear, same_ports).drop);
  EXPECT_FALSE(breaker.Observe(End::kFar, Packet(kUp.Reversed(), 11)).drop);
}

}  // namespace
}  // namespace causeway::wan
