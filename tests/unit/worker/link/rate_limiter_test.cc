#include "worker/link/rate_limiter.h"

#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

TEST(RateLimiterTest, WithoutALimitNothingWaits) {
  RateLimiter limiter(0);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(limiter.Wait(absl::ZeroDuration()), absl::ZeroDuration());
    limiter.Spend(int64_t{1} << 40);
  }
}

TEST(RateLimiterTest, WhatIsOverdrawnIsPaidForBeforeTheNextPiece) {
  RateLimiter limiter(1000);
  EXPECT_EQ(limiter.Wait(absl::Seconds(5)), absl::ZeroDuration());
  limiter.Spend(2000);
  EXPECT_EQ(limiter.Wait(absl::Seconds(5)), absl::Seconds(2));
  EXPECT_EQ(limiter.Wait(absl::Seconds(6)), absl::Seconds(1));
  EXPECT_EQ(limiter.Wait(absl::Seconds(7)), absl::ZeroDuration());
}

TEST(RateLimiterTest, OverALongTimeTheRateIsKeptWhateverThePieces) {
  RateLimiter limiter(1000);
  absl::Duration now = absl::ZeroDuration();
  int64_t sent = 0;
  for (int i = 1; i <= 1000; ++i) {
    now += limiter.Wait(now);
    limiter.Spend(i % 7 * 10);
    sent += i % 7 * 10;
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(now), static_cast<double>(sent) / 1000, 0.1);
}

TEST(RateLimiterTest, ALongPauseSavesUpNoMoreThanAMoment) {
  RateLimiter limiter(1000);
  limiter.Spend(1);
  EXPECT_GT(limiter.Wait(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_EQ(limiter.Wait(absl::Hours(1)), absl::ZeroDuration());
  limiter.Spend(1050);
  EXPECT_EQ(limiter.Wait(absl::Hours(1)), absl::Seconds(1)) << "50 ms of credit were saved";
}

}  // namespace
}  // namespace causeway::worker
