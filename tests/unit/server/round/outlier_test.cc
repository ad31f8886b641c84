#include "server/round/plausibility.h"

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

NormHistory Filled(size_t count, double norm) {
  NormHistory history;
  for (size_t i = 0; i < count; ++i) history.Add(norm);
  return history;
}

TEST(OutlierTest, NobodyIsJudgedBeforeThereIsAHistory) {
  EXPECT_FALSE(IsOutlier(1e30, Filled(kNormMinimum - 1, 1), 10));
  EXPECT_TRUE(IsOutlier(1e30, Filled(kNormMinimum, 1), 10));
}

TEST(OutlierTest, TheFactorIsABoundThatMayBeReached) {
  const NormHistory history = Filled(kNormMinimum, 2);
  EXPECT_FALSE(IsOutlier(20, history, 10));
  EXPECT_TRUE(IsOutlier(20.001, history, 10));
  EXPECT_FALSE(IsOutlier(0, history, 10)) << "small deltas do no harm";
}

TEST(OutlierTest, FactorZeroIsOff) { EXPECT_FALSE(IsOutlier(1e30, Filled(kNormWindow, 1), 0)); }

TEST(OutlierTest, AHistoryOfZerosJudgesNobody) {
  EXPECT_FALSE(IsOutlier(1, Filled(kNormWindow, 0), 10));
}

TEST(OutlierTest, TheMedianIsOfTheLastNorms) {
  NormHistory history = Filled(kNormWindow, 100);
  EXPECT_EQ(history.Median(), 100);
  for (size_t i = 0; i < kNormWindow / 2; ++i) history.Add(1);
  EXPECT_EQ(history.Median(), 50.5);
  history.Add(1);
  EXPECT_EQ(history.Median(), 1);
}

TEST(OutlierTest, AFewLargeNormsDoNotMoveTheMedian) {
  NormHistory history = Filled(kNormMinimum, 1);
  history.Add(1000);
  history.Add(1000);
  EXPECT_TRUE(IsOutlier(11, history, 10));
}

}  // namespace
}  // namespace causeway::server
