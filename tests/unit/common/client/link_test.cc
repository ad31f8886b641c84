#include <algorithm>
#include <utility>
#include <vector>

#include "common/client/link.h"
#include "common/transfer/wire.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/fake_clock.h"

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

TEST_F(LinkTest, AStreamOfASilentLinkIsGivenUpAfterTheLimitAndThreeRoundTrips) {
  Make(16);
  for (const int64_t bytes : {0, 100}) {  // Keepalive is no sign of life.
    Carry(bytes, bytes, 100);
    EXPECT_EQ(link_->stall_limit(Direction::kUp), kStalledAfter);
    EXPECT_EQ(link_->stall_limit(Direction::kDown), kStalledAfter);
  }
  Carry(125'000'000, 0, 60);
  EXPECT_LT(link_->stall_limit(Direction::kUp), kStalledAfter + absl::Seconds(1)) << "a fast one";
  tcp_.rtt = absl::Seconds(2);
  Make(4);
  EXPECT_EQ(link_->stall_limit(Direction::kUp), kStalledAfter + absl::Seconds(6));
}

TEST_F(LinkTest, OnAThinLinkEveryOneOfManyConnectionsIsWaitedForUntilItHadItsTurn) {
  constexpr int64_t kMegabit = 125'000;  // Per second, in bytes.
  Make(16);
  Carry(0, kMegabit, 60);
  const absl::Duration chunk_of_each = absl::Seconds(16.0 * kChunkBytes / kMegabit);
  EXPECT_GT(link_->stall_limit(Direction::kDown), 2 * chunk_of_each);
  EXPECT_EQ(link_->stall_limit(Direction::kUp), kStalledAfter) << "nothing goes up";
}

TEST_F(LinkTest, WhatALinkCarriedOnceDoesNotExcuseItsSilence) {
  Make(16);
  Carry(0, 125'000, 60);
  Carry(0, 0, 40);
  EXPECT_EQ(link_->stall_limit(Direction::kDown), kStalledAfter);
}

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr ConnectionTraits kCubic = {
    .rtt = absl::Milliseconds(100), .send_buffer_bytes = 4 * kMiB, .paced = false};
constexpr ConnectionTraits kBbr = {
    .rtt = absl::Milliseconds(100), .send_buffer_bytes = 4 * kMiB, .paced = true};

// Two objects of 64 MiB at so many MiB/s: during one new connections settle, the other counts.
void Measure(ConnectionTuner& tuner, double mib_per_second, const ConnectionTraits& traits) {
  for (int i = 0; i < 2; ++i) tuner.Note(64 * kMiB, absl::Seconds(64 / mib_per_second), traits);
}

// A paced link that carries at most `limit` MiB/s, and 20 for each connection, in small objects.
int ConnectionsOf(double limit, const ConnectionTraits& traits) {
  ConnectionTuner tuner(0);
  for (int i = 0; i < 10'000; ++i) {
    const double rate = std::min(limit, 20.0 * tuner.connections());
    tuner.Note(4 * kMiB, absl::Seconds(4 / rate), traits);
  }
  return tuner.connections();
}

TEST(ConnectionTunerTest, AFixedNumberStays) {
  ConnectionTuner tuner(2);
  Measure(tuner, 10, kCubic);
  Measure(tuner, 100, kCubic);
  Measure(tuner, 1000, kBbr);
  EXPECT_EQ(tuner.connections(), 2);
}

TEST(ConnectionTunerTest, APacedLinkGetsTheConnectionsThatHoldWhatIsUnderWay) {
  EXPECT_EQ(ConnectionsOf(115, kBbr), 8);  // 1 Gbit/s at 100 ms.
  EXPECT_EQ(ConnectionsOf(11.5, kBbr), 4);
  ConnectionTraits longer = kBbr;
  longer.rtt = absl::Milliseconds(300);
  EXPECT_EQ(ConnectionsOf(115, longer), kMaxConnections);
  EXPECT_EQ(ConnectionsOf(11.5, longer), 4);
}

TEST(ConnectionTunerTest, APacedLinkHasItsConnectionsAfterSomeTensOfRoundTrips) {
  ConnectionTuner tuner(0);
  for (int i = 0; i < 40; ++i) {  // A round trip each.
    tuner.Note(std::min(12 * kMiB, 2 * kMiB * tuner.connections()), kBbr.rtt, kBbr);
  }
  EXPECT_EQ(tuner.connections(), 8);
}

TEST(ConnectionTunerTest, LargerBuffersNeedFewerConnections) {
  ConnectionTraits roomy = kBbr;
  roomy.send_buffer_bytes = 64 * kMiB;
  EXPECT_EQ(ConnectionsOf(115, roomy), 4);
  ConnectionTraits unknown = kBbr;
  unknown.send_buffer_bytes = 0;
  EXPECT_EQ(ConnectionsOf(115, unknown), 8);
}

TEST(ConnectionTunerTest, APacedLinkKeepsItsConnectionsWhileItRests) {
  ConnectionTuner tuner(0);
  for (int i = 0; i < 100; ++i) tuner.Note(64 * kMiB, absl::Seconds(64.0 / 115), kBbr);
  EXPECT_EQ(tuner.connections(), 8);
  for (int i = 0; i < 100; ++i) tuner.Note(64 * kMiB, absl::Seconds(64), kBbr);
  EXPECT_EQ(tuner.connections(), 8);
}

TEST(ConnectionTunerTest, WhatNewConnectionsCarryAtFirstDoesNotCountInTheSearch) {
  ConnectionTuner tuner(0);
  Measure(tuner, 10, kCubic);
  ASSERT_EQ(tuner.connections(), 8);
  tuner.Note(2 * kMiB, absl::Seconds(2), kCubic);  // Slow start: 20 round trips.
  tuner.Note(64 * kMiB, absl::Seconds(3.2), kCubic);
  EXPECT_EQ(tuner.connections(), 16);
}

// With loss-based control: at so many MiB/s as are said, so many connections come of it.
void ExpectSearch(const std::vector<std::pair<double, int>>& rates) {
  ConnectionTuner tuner(0);
  EXPECT_EQ(tuner.connections(), 4);
  for (const auto& [rate, connections] : rates) {
    Measure(tuner, rate, kCubic);
    EXPECT_EQ(tuner.connections(), connections) << rate;
  }
}

TEST(ConnectionTunerTest, ALinkThatEveryDoublingMakesFasterGetsTheMost) {
  ExpectSearch({{2, 8}, {4, 16}, {8, kMaxConnections}});
}

TEST(ConnectionTunerTest, ADoublingThatDoesNotHelpIsTakenBackForGood) {
  ExpectSearch({{2, 8}, {2.2, 4}, {10, 4}});
}

TEST(ConnectionTunerTest, ItStopsWhereTheSecondDoublingDoesNotHelp) {
  ExpectSearch({{2, 8}, {3, 16}, {3.1, 8}});
}

TEST(ConnectionTunerTest, WhatTheBuffersAskForIsNeverTakenBack) {
  ConnectionTuner tuner(0);
  for (int i = 0; i < 100; ++i) tuner.Note(64 * kMiB, absl::Seconds(64.0 / 115), kCubic);
  EXPECT_EQ(tuner.connections(), 8);
}

TEST(ConnectionTunerTest, ShortLinksAndNothingAtAllSayNothing) {
  ConnectionTuner tuner(0);
  ConnectionTraits near = kBbr;
  near.rtt = absl::Microseconds(50);
  ConnectionTraits unknown = kBbr;
  unknown.rtt = absl::ZeroDuration();
  for (int i = 0; i < 100; ++i) {
    tuner.Note(64 * kMiB, absl::Milliseconds(1), near);
    tuner.Note(64 * kMiB, absl::Milliseconds(1), unknown);
    tuner.Note(64 * kMiB, absl::ZeroDuration(), kBbr);
  }
  EXPECT_EQ(tuner.connections(), 4);
}

TEST_F(LinkTest, GoodputIsOfTheTimeInWhichSomethingWasUnderWay) {
  Make(4);
  clock_.Advance(absl::Hours(1));
  link_->OnFlow(/*sent=*/true);
  clock_.Advance(absl::Seconds(2));
  link_->OnChunk(/*sent=*/true, 2000, /*again=*/false);
  link_->OnEnd(/*sent=*/true, /*whole=*/true);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(link_->Report().goodput_up_bytes_per_second(), 1000);
  EXPECT_EQ(link_->Report().goodput_down_bytes_per_second(), 0) << "not known yet";
}

TEST_F(LinkTest, ObjectsThatShareTheLinkAreMeasuredTogether) {
  Make(4);
  link_->OnFlow(/*sent=*/false);
  link_->OnFlow(/*sent=*/false);
  link_->OnChunk(/*sent=*/false, 3000, /*again=*/false);
  clock_.Advance(absl::Seconds(1));
  link_->OnEnd(/*sent=*/false, /*whole=*/true);
  EXPECT_EQ(link_->Report().goodput_down_bytes_per_second(), 3000);
  link_->OnChunk(/*sent=*/false, 1000, /*again=*/false);
  clock_.Advance(absl::Seconds(1));
  link_->OnEnd(/*sent=*/false, /*whole=*/true);
  EXPECT_EQ(link_->Report().goodput_down_bytes_per_second(), 0.75 * 3000 + 0.25 * 1000);
  EXPECT_EQ(link_->bytes(Direction::kDown), 4000);
}

TEST_F(LinkTest, AnObjectThatIsGivenUpCountsWithTheNext) {
  Make(4);
  for (const bool whole : {false, true}) {
    EXPECT_EQ(link_->Report().goodput_up_bytes_per_second(), 0);
    link_->OnFlow(/*sent=*/true);
    link_->OnChunk(/*sent=*/true, whole ? 1500 : 500, /*again=*/false);
    clock_.Advance(absl::Seconds(1));
    link_->OnEnd(/*sent=*/true, whole);
  }
  EXPECT_EQ(link_->Report().goodput_up_bytes_per_second(), 1000);
}

TEST_F(LinkTest, AReportHasWhatWasCounted) {
  Make(4);
  for (int i = 0; i < 3; ++i) link_->OnChunk(/*sent=*/true, 10, /*again=*/true);
  link_->OnResume();
  link_->OnBlocked(true);
  clock_.Advance(absl::Milliseconds(1500));
  link_->OnBlocked(false);
  const v1::LinkReport report = link_->Report();
  EXPECT_EQ(report.resent_chunks(), 3);
  EXPECT_EQ(report.resumes(), 1);
  EXPECT_EQ(report.send_blocked_seconds(), 1.5);
}

}  // namespace
}  // namespace causeway
