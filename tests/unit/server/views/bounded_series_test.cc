#include "server/views/run_curves.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;

// Counts what it stands for.
struct Sum {
  int64_t last = 0;
  int64_t samples = 1;
  void Merge(const Sum& later) {
    last = later.last;
    samples += later.samples;
  }
};

BoundedSeries<Sum> SeriesOf(int64_t samples, size_t capacity) {
  BoundedSeries<Sum> series(capacity);
  for (int64_t i = 1; i <= samples; ++i) series.Add({.last = i});
  return series;
}

std::vector<int64_t> Lasts(const BoundedSeries<Sum>& series) {
  std::vector<int64_t> lasts;
  for (const Sum& point : series.points()) lasts.push_back(point.last);
  return lasts;
}

TEST(BoundedSeriesTest, KeepsEveryPointUntilItIsFull) {
  EXPECT_THAT(Lasts(SeriesOf(4, 4)), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(SeriesOf(4, 4).stride(), 1);
}

TEST(BoundedSeriesTest, NeighboursBecomeOneWhenItIsFull) {
  EXPECT_THAT(Lasts(SeriesOf(5, 4)), ElementsAre(2, 4, 5));
  EXPECT_THAT(Lasts(SeriesOf(6, 4)), ElementsAre(2, 4, 6));
  EXPECT_EQ(SeriesOf(6, 4).points().back().samples, 2);
}

TEST(BoundedSeriesTest, CoversEverySampleOnceHoweverLongItGoesOn) {
  for (const int64_t samples : {1, 7, 8, 9, 100, 1023, 1024, 1025, 50'000}) {
    const BoundedSeries<Sum> series = SeriesOf(samples, 8);
    EXPECT_LE(series.points().size(), 8U);
    EXPECT_GE(series.points().size(), samples < 4 ? 1U : 4U) << samples;
    int64_t covered = 0;
    for (const Sum& point : series.points()) {
      covered += point.samples;
      EXPECT_EQ(point.last, covered);
      if (&point != &series.points().back()) {
        EXPECT_EQ(point.samples, series.stride());
      }
    }
    EXPECT_EQ(covered, samples);
  }
}

TEST(BoundedSeriesTest, GoesOnAfterItsTailWasDropped) {
  BoundedSeries<Sum> series = SeriesOf(9, 8);  // 2 4 6 8 9
  series.DropTail([](const Sum& point) { return point.last > 6; });
  EXPECT_THAT(Lasts(series), ElementsAre(2, 4, 6));
  series.Add({.last = 7});
  series.Add({.last = 8});
  series.Add({.last = 9});
  EXPECT_THAT(Lasts(series), ElementsAre(2, 4, 6, 8, 9));
  series.DropTail([](const Sum&) { return true; });
  series.Add({.last = 1});
  EXPECT_THAT(Lasts(series), ElementsAre(1));
}

TEST(BoundedSeriesTest, IsWhatItWasFromItsPartsAndGoesOnTheSame) {
  BoundedSeries<Sum> series = SeriesOf(9, 8);
  auto again =
      BoundedSeries<Sum>::Of(8, series.points(), series.stride(), series.samples_in_last());
  ASSERT_TRUE(again.has_value());
  for (int64_t i = 10; i <= 40; ++i) {
    series.Add({.last = i});
    again->Add({.last = i});
    EXPECT_EQ(Lasts(*again), Lasts(series));
  }
}

TEST(BoundedSeriesTest, RefusesPartsThatNoneHas) {
  const std::vector<Sum> three(3);
  EXPECT_TRUE(BoundedSeries<Sum>::Of(4, three, 2, 1).has_value());
  EXPECT_TRUE(BoundedSeries<Sum>::Of(4, {}, 2, 0).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(2, three, 2, 1).has_value()) << "more than it takes";
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 3, 1).has_value()) << "strides are powers of two";
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 0, 0).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, -2, 1).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 2, 3).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, three, 2, 0).has_value());
  EXPECT_FALSE(BoundedSeries<Sum>::Of(4, {}, 2, 1).has_value());
}

}  // namespace
}  // namespace causeway::server
