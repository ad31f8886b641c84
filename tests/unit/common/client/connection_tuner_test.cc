#include "common/client/link.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace causeway {
namespace {

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

TEST(ConnectionTunerTest, WithLossBasedControlALinkThatEveryDoublingMakesFasterGetsTheMost) {
  ConnectionTuner tuner(0);
  EXPECT_EQ(tuner.connections(), 4);
  Measure(tuner, 2, kCubic);
  EXPECT_EQ(tuner.connections(), 8);
  Measure(tuner, 4, kCubic);
  EXPECT_EQ(tuner.connections(), 16);
  Measure(tuner, 8, kCubic);
  EXPECT_EQ(tuner.connections(), kMaxConnections);
}

TEST(ConnectionTunerTest, ADoublingThatDoesNotHelpIsTakenBackForGood) {
  ConnectionTuner tuner(0);
  Measure(tuner, 2, kCubic);
  ASSERT_EQ(tuner.connections(), 8);
  Measure(tuner, 2.2, kCubic);
  EXPECT_EQ(tuner.connections(), 4);
  Measure(tuner, 10, kCubic);
  EXPECT_EQ(tuner.connections(), 4);
}

TEST(ConnectionTunerTest, ItStopsWhereTheSecondDoublingDoesNotHelp) {
  ConnectionTuner tuner(0);
  Measure(tuner, 2, kCubic);
  Measure(tuner, 3, kCubic);
  ASSERT_EQ(tuner.connections(), 16);
  Measure(tuner, 3.1, kCubic);
  EXPECT_EQ(tuner.connections(), 8);
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

}  // namespace
}  // namespace causeway
