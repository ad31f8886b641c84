#include "server/access/rate_limiter.h"
#include "tests/unit/common/base/fake_clock.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(RateLimiter, ABurstIsFreeAndThenTheRateCounts) {
  FakeClock clock;
  RateLimiter limiter(10, 5, 100, clock);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(limiter.Take("a"));
  EXPECT_FALSE(limiter.Take("a"));
  clock.Advance(absl::Milliseconds(99));
  EXPECT_FALSE(limiter.Take("a"));
  clock.Advance(absl::Milliseconds(2));
  EXPECT_TRUE(limiter.Take("a"));
  EXPECT_FALSE(limiter.Take("a"));
  clock.Advance(absl::Hours(1));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(limiter.Take("a"));
  EXPECT_FALSE(limiter.Take("a"));
}

TEST(RateLimiter, OnePeerDoesNotUseUpAnothersShare) {
  FakeClock clock;
  RateLimiter limiter(1, 2, 100, clock);
  EXPECT_TRUE(limiter.Take("a"));
  EXPECT_TRUE(limiter.Take("a"));
  EXPECT_FALSE(limiter.Take("a"));
  EXPECT_TRUE(limiter.Take("b"));
}

TEST(RateLimiter, WhatCostsMoreUsesMoreUp) {
  FakeClock clock;
  RateLimiter limiter(10, 5, 100, clock);
  EXPECT_TRUE(limiter.Take("a", 3));
  EXPECT_FALSE(limiter.Take("a", 3));
  EXPECT_TRUE(limiter.Take("a", 2));
  EXPECT_FALSE(limiter.Take("a"));
  EXPECT_TRUE(limiter.Take("b", 100)) << "whatever it costs, one is possible at rest";
  EXPECT_FALSE(limiter.Take("b"));
}

TEST(RateLimiter, ManyNamesDoNotFillTheMemory) {
  FakeClock clock;
  RateLimiter limiter(1, 2, 10, clock);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(limiter.Take(absl::StrCat("peer ", i)));
  EXPECT_FALSE(limiter.Take("one more"));
  EXPECT_TRUE(limiter.Take("peer 3"));  // Known ones go on.
  clock.Advance(absl::Seconds(5));      // All have rested: they are forgotten.
  EXPECT_TRUE(limiter.Take("one more"));
}

}  // namespace
}  // namespace causeway::server
