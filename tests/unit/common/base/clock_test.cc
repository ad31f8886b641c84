#include "tests/unit/common/base/fake_clock.h"

#include "gtest/gtest.h"

namespace causeway {
namespace {

TEST(FakeClock, StandsStillUntilItIsMoved) {
  FakeClock clock;
  const absl::Time now = clock.Now();
  const absl::Duration monotonic = clock.Monotonic();
  EXPECT_EQ(clock.Now(), now);
  EXPECT_EQ(clock.Monotonic(), monotonic);
  clock.Advance(absl::Milliseconds(250));
  EXPECT_EQ(clock.Now() - now, absl::Milliseconds(250));
  EXPECT_EQ(clock.Monotonic() - monotonic, absl::Milliseconds(250));
}

TEST(FakeClock, JumpOfTheWallClockLeavesMonotonicTimeAlone) {
  FakeClock clock(absl::FromUnixSeconds(100));
  clock.JumpWallClock(-absl::Seconds(40));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(60));
  EXPECT_EQ(clock.Monotonic(), absl::ZeroDuration());
}

TEST(RealClock, MonotonicTimeNeverGoesBack) {
  Clock* const clock = Clock::Real();
  ASSERT_EQ(clock, Clock::Real());
  absl::Duration last = clock->Monotonic();
  for (int i = 0; i < 10'000; ++i) {
    const absl::Duration now = clock->Monotonic();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(clock->Now(), absl::FromUnixSeconds(1'600'000'000));
}

}  // namespace
}  // namespace causeway
