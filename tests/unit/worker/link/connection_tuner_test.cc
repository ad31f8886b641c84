#include "worker/link/connection_tuner.h"

#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr absl::Duration kRtt = absl::Milliseconds(100);

// Three objects at so many MiB/s.
void Measure(ConnectionTuner& tuner, double mib_per_second) {
  for (int i = 0; i < 3; ++i) tuner.Note(64 * kMiB, absl::Seconds(64 / mib_per_second), kRtt);
}

TEST(ConnectionTunerTest, AFixedNumberStays) {
  ConnectionTuner tuner(2);
  Measure(tuner, 10);
  Measure(tuner, 100);
  EXPECT_EQ(tuner.connections(), 2);
}

TEST(ConnectionTunerTest, ALinkThatEveryDoublingMakesFasterGetsTheMost) {
  ConnectionTuner tuner(0);
  EXPECT_EQ(tuner.connections(), 4);
  Measure(tuner, 10);
  EXPECT_EQ(tuner.connections(), 8);
  Measure(tuner, 20);
  EXPECT_EQ(tuner.connections(), 16);
  Measure(tuner, 40);
  EXPECT_EQ(tuner.connections(), kMaxConnections);
}

TEST(ConnectionTunerTest, ADoublingThatDoesNotHelpIsTakenBackForGood) {
  ConnectionTuner tuner(0);
  Measure(tuner, 10);
  Measure(tuner, 11.4);
  EXPECT_EQ(tuner.connections(), 4);
  Measure(tuner, 100);
  EXPECT_EQ(tuner.connections(), 4);
}

TEST(ConnectionTunerTest, ItStopsWhereTheSecondDoublingDoesNotHelp) {
  ConnectionTuner tuner(0);
  Measure(tuner, 10);
  Measure(tuner, 15);
  Measure(tuner, 15.1);
  EXPECT_EQ(tuner.connections(), 8);
}

TEST(ConnectionTunerTest, SmallObjectsShortLinksAndNothingAtAllSayNothing) {
  ConnectionTuner tuner(0);
  for (int i = 0; i < 10; ++i) {
    tuner.Note(kMiB, absl::Seconds(1), kRtt);
    tuner.Note(64 * kMiB, absl::Seconds(1), absl::Microseconds(50));
    tuner.Note(64 * kMiB, absl::Seconds(1), absl::ZeroDuration());
    tuner.Note(64 * kMiB, absl::ZeroDuration(), kRtt);
  }
  EXPECT_EQ(tuner.connections(), 4);
}

}  // namespace
}  // namespace causeway::worker
