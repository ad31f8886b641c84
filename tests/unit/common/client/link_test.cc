#include "common/client/link.h"

#include "common/base/clock.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

constexpr absl::Duration kStalledAfter = absl::Seconds(30);

// A link of which TCP says what the test wants.
class LinkTest : public ::testing::Test {
 protected:
  void Make(int connections) {
    Link::Options options;
    options.connections = connections;
    options.clock = &clock_;
    options.stalled_after = kStalledAfter;
    options.tcp = [this] { return tcp_; };
    link_ = std::make_unique<Link>(std::move(options));
    link_->Refresh();
  }
  // So many bytes a second for so many seconds.
  void Carry(int64_t up, int64_t down, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock_.Advance(absl::Seconds(1));
      tcp_.sent_bytes += up;
      tcp_.received_bytes += down;
      link_->Refresh();
    }
  }

  FakeClock clock_;
  TcpLink tcp_;
  std::unique_ptr<Link> link_;
};

TEST_F(LinkTest, AStreamOfASilentLinkIsGivenUpAfterTheLimit) {
  Make(16);
  Carry(0, 0, 100);
  EXPECT_EQ(link_->stall_limit(Direction::kUp), kStalledAfter);
  EXPECT_EQ(link_->stall_limit(Direction::kDown), kStalledAfter);
}

TEST_F(LinkTest, RoundTripsCountThreeTimes) {
  tcp_.rtt = absl::Seconds(2);
  Make(4);
  EXPECT_EQ(link_->stall_limit(Direction::kUp), kStalledAfter + absl::Seconds(6));
}

TEST_F(LinkTest, KeepaliveIsNoSignOfLife) {
  Make(16);
  Carry(100, 100, 100);
  EXPECT_EQ(link_->stall_limit(Direction::kDown), kStalledAfter);
}

TEST_F(LinkTest, OnAThinLinkEveryOneOfManyConnectionsIsWaitedForUntilItHadItsTurn) {
  constexpr int64_t kMegabit = 125'000;  // Per second, in bytes.
  Make(16);
  Carry(0, kMegabit, 60);
  const absl::Duration chunk_of_each = absl::Seconds(16.0 * kChunkBytes / kMegabit);
  EXPECT_GT(link_->stall_limit(Direction::kDown), 2 * chunk_of_each);
  EXPECT_EQ(link_->stall_limit(Direction::kUp), kStalledAfter) << "nothing goes up";
}

TEST_F(LinkTest, OnAFastLinkAStreamThatStandsStillIsFoundAsSoonAsEver) {
  Make(16);
  Carry(125'000'000, 0, 60);
  EXPECT_LT(link_->stall_limit(Direction::kUp), kStalledAfter + absl::Seconds(1));
}

TEST_F(LinkTest, WhatALinkCarriedOnceDoesNotExcuseItsSilence) {
  Make(16);
  Carry(0, 125'000, 60);
  Carry(0, 0, 40);
  EXPECT_EQ(link_->stall_limit(Direction::kDown), kStalledAfter);
}

}  // namespace
}  // namespace causeway
