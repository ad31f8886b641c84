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

TEST(LinkMeterTest, GoodputIsOfTheTimeInWhichSomethingWasUnderWay) {
  FakeClock clock;
  LinkMeter meter(&clock);
  clock.Advance(absl::Hours(1));
  meter.Begin(Direction::kUp);
  clock.Advance(absl::Seconds(2));
  meter.Add(Direction::kUp, 2000);
  const LinkMeter::Sample sample = meter.End(Direction::kUp, true);
  clock.Advance(absl::Hours(1));
  EXPECT_EQ(sample.bytes, 2000);
  EXPECT_EQ(sample.time, absl::Seconds(2));
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kUp), 1000);
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kDown), 0) << "not known yet";
}

TEST(LinkMeterTest, ObjectsThatShareTheLinkAreMeasuredTogether) {
  FakeClock clock;
  LinkMeter meter(&clock);
  meter.Begin(Direction::kDown);
  meter.Begin(Direction::kDown);
  meter.Add(Direction::kDown, 3000);
  clock.Advance(absl::Seconds(1));
  meter.End(Direction::kDown, true);
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kDown), 3000);
  meter.Add(Direction::kDown, 1000);
  clock.Advance(absl::Seconds(1));
  const LinkMeter::Sample second = meter.End(Direction::kDown, true);
  EXPECT_EQ(second.bytes, 1000);
  EXPECT_EQ(second.time, absl::Seconds(1));
  EXPECT_EQ(meter.goodput_bytes_per_second(Direction::kDown), 0.75 * 3000 + 0.25 * 1000);
  EXPECT_EQ(meter.bytes(Direction::kDown), 4000);
}

TEST(LinkMeterTest, AnObjectThatIsGivenUpCountsWithTheNext) {
  FakeClock clock;
  LinkMeter meter(&clock);
  meter.Begin(Direction::kUp);
  meter.Add(Direction::kUp, 500);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(meter.End(Direction::kUp, false).bytes, 0);
  meter.Begin(Direction::kUp);
  meter.Add(Direction::kUp, 500);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(meter.End(Direction::kUp, true).bytes, 1000);
}

TEST(LinkMeterTest, AReportHasWhatWasCounted) {
  FakeClock clock;
  LinkMeter meter(&clock);
  meter.AddResent(3);
  meter.AddResume();
  meter.AddBlocked(absl::Milliseconds(1500));
  v1::LinkReport report;
  meter.Report(report);
  EXPECT_EQ(report.resent_chunks(), 3);
  EXPECT_EQ(report.resumes(), 1);
  EXPECT_EQ(report.send_blocked_seconds(), 1.5);
}

}  // namespace
}  // namespace causeway
