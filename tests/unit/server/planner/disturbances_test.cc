#include "server/planner/disturbances.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/planner/disturbance_text.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using Shape = RandomSeconds::Shape;

Interruptions Parsed(absl::string_view text) {
  const absl::StatusOr<Interruptions> what = ParseInterruptions(text);
  EXPECT_TRUE(what.ok()) << what.status();
  return what.ok() ? *what : Interruptions();
}

TEST(RandomSeconds, FollowTheirShape) {
  EXPECT_EQ((RandomSeconds{Shape::kFixed, 20}.At(0.7)), 20);
  const RandomSeconds uniform = {Shape::kUniform, 30, 10};
  EXPECT_EQ(uniform.At(0), 20);
  EXPECT_EQ(uniform.At(0.5), 30);
  const RandomSeconds exponential = {Shape::kExponential, 20};
  EXPECT_EQ(exponential.At(0), 0);
  EXPECT_NEAR(exponential.At(0.5), 20 * std::log(2), 1e-9);
}

TEST(InterruptionTimes, HaveTheirMeansAndNeverOverlap) {
  for (const char* const text : {"2s/20s", "1s..3s/20s", "exp:2s/exp:20s", "exp:2s/10s..30s"}) {
    InterruptionTimes times(Parsed(text), 1, 0);
    constexpr int kDraws = 20'000;
    double end = 0;
    double length = 0;
    for (int i = 0; i < kDraws; ++i) {
      const InterruptionTimes::Stretch stretch = times.Next();
      ASSERT_GE(stretch.begin, end) << text;
      end = stretch.end;
      length += stretch.end - stretch.begin;
    }
    EXPECT_NEAR(length / kDraws, 2, 0.05) << text;
    // One that would begin within the one before begins after it.
    EXPECT_NEAR(end / kDraws, 20, 0.5) << text;
  }
}

TEST(InterruptionTimes, FollowFromTheSeedAndTheStream) {
  const Interruptions what = Parsed("exp:2s/exp:20s");
  const double first = InterruptionTimes(what, 1, 0).Next().begin;
  EXPECT_EQ(InterruptionTimes(what, 1, 0).Next().begin, first);
  EXPECT_NE(InterruptionTimes(what, 2, 0).Next().begin, first);
  EXPECT_NE(InterruptionTimes(what, 1, 1).Next().begin, first);
}

TEST(InterruptionTimes, OnceIsOnce) {
  InterruptionTimes times(Parsed("20s@2m"), 1, 0);
  const InterruptionTimes::Stretch stretch = times.Next();
  EXPECT_EQ(stretch.begin, 120);
  EXPECT_EQ(stretch.end, 140);
  EXPECT_TRUE(std::isinf(times.Next().begin));
  EXPECT_TRUE(std::isinf(InterruptionTimes(Interruptions(), 1, 0).Next().begin));
}

TEST(DisturbanceText, IsReadAndTold) {
  const Interruptions what = Parsed("5s..60s/exp:1h");
  EXPECT_EQ(what.length.shape, Shape::kUniform);
  EXPECT_EQ(what.length.mean, 32.5);
  EXPECT_EQ(what.length.half_width, 27.5);
  EXPECT_EQ(what.every.shape, Shape::kExponential);
  EXPECT_EQ(what.every.mean, 3600);
  EXPECT_FALSE(Parsed("").any());
  Disturbances all = {.outages = what,
                      .silences = Parsed("3s@1m"),
                      .stragglers = Parsed("exp:5s/10m"),
                      .step_spread = 0.1};
  ASSERT_TRUE(ParseJitter("0.1..1", all).ok());
  EXPECT_EQ(DisturbancesText(all),
            "the coordinator away for 5s to 1m every 1h (exponential), workers back 4.5 s later; "
            "every link silent for 3s, once, after 1m; links at 10 to 100 % of their rate, drawn "
            "every second; a step longer by 5s (exponential) every 10m; steps that spread by 10 %");
  EXPECT_EQ(DisturbancesText({}), "");
}

TEST(DisturbanceText, WhatIsNoneIsRefusedWithAnExample) {
  for (const char* const text : {"20s", "20/1h", "20s/", "/1h", "0s/1h", "60s..5s/1h", "exp:/1h",
                                 "20s@", "20s@exp:1h", "inf/1h", "20s/1h/1h"}) {
    const absl::Status refused = ParseInterruptions(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("20s/exp:1h")) << text;
  }
  for (const char* const text : {"0.5", "a..b", "0.5..", "0.5..2", "1..0.5", "-1..1", "0..0"}) {
    Disturbances disturbances;
    EXPECT_TRUE(absl::IsInvalidArgument(ParseJitter(text, disturbances))) << text;
  }
}

TEST(Disturbances, ThatMakeNoSenseAreRefusedByName) {
  EXPECT_THAT(std::string(CheckDisturbances({.outages = Parsed("2h/1h")}).message()),
              HasSubstr("outages must be further apart"));
  EXPECT_THAT(std::string(CheckDisturbances({.stragglers = Parsed("1s/1s")}).message()),
              HasSubstr("stragglers"));
  EXPECT_FALSE(CheckDisturbances({.return_seconds = -1}).ok());
  EXPECT_FALSE(CheckDisturbances({.step_spread = std::nan("")}).ok());
  EXPECT_TRUE(CheckDisturbances({.outages = Parsed("1h@1s")}).ok());
}

TEST(Disturbances, LeaveAShareOfTheRateOnAverage) {
  EXPECT_EQ(Disturbances().mean_rate(), 1);
  EXPECT_NEAR((Disturbances{.silences = Parsed("3s/1m"), .least_rate = 0.1}.mean_rate()),
              0.55 * 0.95, 1e-12);
}

}  // namespace
}  // namespace causeway::server
