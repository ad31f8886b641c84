#include "server/planner/stragglers.h"

#include <cmath>

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kRate = 8 * kMiB;  // A chunk per second.

TEST(Stragglers, AnObjectOfFewChunksHasNone) {
  EXPECT_EQ(StragglerSeconds(0.6 * kMiB, kRate, 4, 0.1), 0);
  EXPECT_EQ(StragglerSeconds(4 * kMiB, kRate, 4, 0.1), 0);
}

TEST(Stragglers, OneConnectionCarriesAllAtTheFullRate) {
  EXPECT_EQ(StragglerSeconds(5 * kMiB, kRate, 1, 0.1), 0);
}

TEST(Stragglers, FullRoundsOfChunksEndTogether) {
  EXPECT_EQ(StragglerSeconds(8 * kMiB, kRate, 4, 0.1), 0);
}

TEST(Stragglers, WithoutDistanceTheRestOfTheLinkIsFoundAtOnce) {
  EXPECT_NEAR(StragglerSeconds(5 * kMiB, kRate, 4, 0), 0, 1e-12);
}

TEST(Stragglers, FarAwayTheLastChunkCrossesAtItsShare) {
  // At a quarter of the rate 4 s instead of 1 s.
  EXPECT_NEAR(StragglerSeconds(5 * kMiB, kRate, 4, 1000), 3, 0.01);
  EXPECT_NEAR(StragglerSeconds(4.5 * kMiB, kRate, 4, 1000), 1.5, 0.01);
  // Two of them: 4 s instead of 2 s.
  EXPECT_NEAR(StragglerSeconds(6 * kMiB, kRate, 4, 1000), 2, 0.01);
}

TEST(Stragglers, TheShareGrowsByAQuarterInEightRoundTrips) {
  // 0.8 s for each quarter: of a chunk a second, e in 3.585 s. 0.25 * 3.585 * (e^(t / 3.585) - 1)
  // = 1.
  const double growth = 0.8 / std::log(1.25);
  const double expected = growth * std::log(1 + 1 / (0.25 * growth));
  EXPECT_NEAR(expected, 2.69, 0.01);
  EXPECT_NEAR(StragglerSeconds(5 * kMiB, kRate, 4, 0.1), expected - 1, 1e-9);
}

TEST(Stragglers, TheShareEndsAtTheWholeLink) {
  // With 10 ms the whole link is found after 0.08 / ln 1.25 * ln 4 = 0.497 s, in which 0.269 of the
  // chunk have crossed; the rest takes 0.731 s.
  EXPECT_NEAR(StragglerSeconds(5 * kMiB, kRate, 4, 0.01), 0.497 + 0.731 - 1, 0.001);
}

}  // namespace
}  // namespace causeway::server
