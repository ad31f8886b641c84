#include "server/access/access.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/rate_limiter.h"
#include "tests/unit/common/base/fake_clock.h"
#include "tests/unit/common/telemetry/awaited_events.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

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

Peer Worker(const std::string& name, int port) {
  Peer peer;
  peer.address = absl::StrCat("ipv4:10.0.0.2:", port);
  peer.identity = Identity{.run = "*", .role = Role::kWorker, .name = name};
  return peer;
}

TEST(Access, ARefusalThatRepeatsIsSaidOnceAMinuteWithItsNumber) {
  FakeClock clock;
  AwaitedEvents events;
  Access::Options options;
  options.clock = &clock;
  options.events = &events;
  Access access(std::move(options));
  const auto ask_as_b = [&](const std::string& name, int port) {
    EXPECT_EQ(access.CheckWorker(Worker(name, port), Action::kAttach, "b").code(),
              absl::StatusCode::kPermissionDenied);
  };
  for (int i = 0; i < 25; ++i) ask_as_b("a", 4000 + i);
  ask_as_b("c", 4000);
  EXPECT_THAT(events.Messages(), ElementsAre(HasSubstr("refused worker a at ipv4:10.0.0.2:4000: "),
                                             HasSubstr("refused worker c at ")));
  clock.Advance(absl::Minutes(1));
  ask_as_b("a", 5000);
  ask_as_b("c", 5000);
  ASSERT_EQ(events.all().size(), 4u);
  EXPECT_THAT(events.Messages()[2], EndsWith("; 24 more before this"));
  EXPECT_THAT(events.Messages()[3], Not(HasSubstr("more before this")));
}

}  // namespace
}  // namespace causeway::server
