#include "worker/member/merge_record.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Steps(StepCounter& counter, int64_t end) {
  std::vector<int64_t> steps;
  while (counter.step() < end) steps.push_back(counter.Advance(end));
  return steps;
}

TEST(StepCounterTest, AtPaceOneEveryStepIsDone) {
  StepCounter counter(3);
  EXPECT_THAT(Steps(counter, 6), ElementsAre(4, 5, 6));
}

TEST(StepCounterTest, AFractionIsCarriedOn) {
  StepCounter counter(0, 2500);
  EXPECT_THAT(Steps(counter, 10), ElementsAre(2, 5, 7, 10));
}

TEST(StepCounterTest, TheLastInnerStepEndsAtTheBudget) {
  StepCounter counter(0, 3000);
  EXPECT_THAT(Steps(counter, 7), ElementsAre(3, 6, 7));
}

TEST(StepCounterTest, APaceHoldsFromTheNextInnerStep) {
  StepCounter counter(0, 1500);
  EXPECT_EQ(counter.Advance(100), 1);
  EXPECT_EQ(counter.carry_milli(), 500);
  counter.SetPace(1500);
  EXPECT_EQ(counter.carry_milli(), 500) << "the same order again changes nothing";
  counter.SetPace(2000);
  EXPECT_THAT(Steps(counter, 7), ElementsAre(3, 5, 7));
}

TEST(StepCounterTest, ContinuesWhereItWasStopped) {
  StepCounter whole(0, 1300);
  const std::vector<int64_t> all = Steps(whole, 40);
  StepCounter first(0, 1300);
  std::vector<int64_t> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(first.Advance(40));
  StepCounter second(first.step(), first.pace_milli(), first.carry_milli());
  for (const int64_t step : Steps(second, 40)) parts.push_back(step);
  EXPECT_EQ(parts, all);
}

}  // namespace
}  // namespace causeway::worker
