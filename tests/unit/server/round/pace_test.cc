#include "server/round/pace.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/round/member_table.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

Member PacedWorker(const std::string& id, double step_seconds, int64_t pace_milli = kPaceOne) {
  Member member = Active(id, 50);
  member.progress.inner_step_time = absl::Seconds(step_seconds);
  member.progress.pace_milli = pace_milli;
  return member;
}

TEST(PaceTest, TheSlowerOfTwoGetsWhatFitsUnlessItHasThatNearly) {
  struct Case {
    const char* what;
    double step_seconds;  // The other one's: 1.
    int64_t pace;
    double max_pace;
    int64_t wanted;  // 0: it stays.
  };
  const Case cases[] = {
      {"half the speed: a little more than two", 2, kPaceOne, 4, 2080},
      {"bounded", 100, kPaceOne, 4, 4000},
      {"has the bound", 100, 4000, 4, 0},
      {"is above it", 100, 6000, 4, 4000},
      {"off", 2, kPaceOne, 0, 0},
      {"off", 2, kPaceOne, 1, 0},
      {"off takes back what there is", 2, 2000, 0, kPaceOne},
      {"off takes back what there is", 2, 2000, 1, kPaceOne},
      {"small differences are left alone", 1.03, kPaceOne, 4, 0},
      {"not so small", 1.06, kPaceOne, 4, 1100},
      {"the measured ratio trembles", 1.88, 2080, 4, 0},
      {"the measured ratio trembles", 1.95, 2080, 4, 0},
      {"the measured ratio trembles", 2.0, 2080, 4, 0},
      {"the measured ratio trembles", 2.1, 2080, 4, 0},
      {"slower than that", 2.2, 2080, 4, 2290},
      {"faster than that", 1.5, 2080, 4, 1560},
      {"a pace close to one does not come and go", 1.03, 1100, 4, 0},
      {"and goes in the end", 1.01, 1100, 4, kPaceOne},
  };
  for (const Case& c : cases) {
    std::map<std::string, int64_t> expected;
    if (c.wanted > 0) expected["b"] = c.wanted;
    EXPECT_EQ(NewPaces(Table({PacedWorker("a", 1), PacedWorker("b", c.step_seconds, c.pace)}),
                       c.max_pace),
              expected)
        << c.what << ", " << c.step_seconds;
  }
}

TEST(PaceTest, AnOrderOnItsWayIsNotRepeated) {
  Member slow = PacedWorker("b", 2);
  slow.record.set_ordered_pace_milli(2080);
  slow.record.set_ordered_from_step(60);
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), slow}), 4), IsEmpty());
  slow.record.set_step(61);  // It should have obeyed.
  EXPECT_THAT(NewPaces(Table({PacedWorker("a", 1), slow}), 4), ElementsAre(Pair("b", 2080)));
}

TEST(PaceTest, WhoHasNoSpeedYetOrIsGoneIsComparedWithNobody) {
  EXPECT_THAT(
      NewPaces(Table({Gone(PacedWorker("a", 0.1)), PacedWorker("b", 1), PacedWorker("c", 0)}), 4),
      IsEmpty());
}

TEST(PaceTest, WhenTheFastestLeavesTheNextOneSetsThePace) {
  EXPECT_THAT(NewPaces(Table({PacedWorker("b", 2, 2080), PacedWorker("c", 4, 4000)}), 4),
              ElementsAre(Pair("b", kPaceOne), Pair("c", 2080)));
}

TEST(PaceTest, ANewPaceStartsWithThePeriod) {
  EXPECT_EQ(PaceStart(0, 30), 30);
  EXPECT_EQ(PaceStart(29, 30), 30);
  EXPECT_EQ(PaceStart(30, 30), 60);
}

constexpr int64_t kTokens = 100;  // Tokens per inner step.

Member BudgetWorker(const std::string& id, int64_t step, int64_t pace_milli = kPaceOne) {
  Member member = Active(id, step);
  member.progress.pace_milli = pace_milli;
  member.progress.inner_step_time = absl::Milliseconds(pace_milli);
  member.progress.tokens = step * kTokens * 1000 / pace_milli;
  return member;
}

// The step to announce for a budget of `tokens`; 0: none yet. With 9 steps of a second in a lease,
// the notice is 6 of them.
int64_t StopStep(const Members& members, int64_t tokens, int64_t tokens_per_step = kTokens) {
  return StopStepForTokens(members, tokens_per_step, tokens, absl::Seconds(9)).value_or(0);
}

TEST(TokenBudgetTest, TheStepIsTheFirstOneWithTheBudgetSpent) {
  EXPECT_EQ(StopStep(Table({BudgetWorker("a", 40), BudgetWorker("b", 40)}), 20'000), 0)
      << "the end is far";
  const Members members = Table({BudgetWorker("a", 91), BudgetWorker("b", 90)});
  EXPECT_EQ(StopStep(members, 20'000), 100);
  EXPECT_EQ(StopStep(members, 20'001), 101);
}

TEST(TokenBudgetTest, AWorkerAtPaceTwoTrainsHalfAsMuchOnTheWay) {
  EXPECT_EQ(StopStep(Table({BudgetWorker("a", 92), BudgetWorker("b", 92, 2000)}), 15'000), 100);
}

TEST(TokenBudgetTest, ABudgetThatIsSpentSoonerThanTheWordTravelsIsExceeded) {
  EXPECT_EQ(StopStep(Table({BudgetWorker("a", 97), BudgetWorker("b", 98)}), 20'000), 98 + 6 + 1);
  EXPECT_EQ(StopStep(Table({BudgetWorker("a", 300)}), 20'000), 300 + 6 + 1);
}

TEST(TokenBudgetTest, WhatTheDeadTrainedCounts) {
  const Members members = Table({BudgetWorker("a", 95), Gone(BudgetWorker("b", 50))});
  EXPECT_EQ(TokensTrained(members), 14'500);
  EXPECT_EQ(StopStep(members, 15'200), 102);
}

TEST(TokenBudgetTest, WithoutAnySpeedThereIsNoEstimate) {
  EXPECT_EQ(StopStep({}, 1), 0);
  Member fresh = BudgetWorker("a", 0);
  fresh.progress.inner_step_time = absl::ZeroDuration();
  EXPECT_EQ(StopStep(Table({fresh}), 1), 0);
}

TEST(TokenBudgetTest, ForeignTrainersSayWhatTheirStepsTrain) {
  Members members = Table({BudgetWorker("a", 40), BudgetWorker("b", 40)});
  EXPECT_EQ(StopStep(members, 20'000, 0), 0);
  for (auto& [id, member] : members) member.progress.tokens_per_second = kTokens;
  EXPECT_EQ(StopStep(members, 10'000, 0), StopStep(members, 10'000));
  members["b"].progress.tokens_per_second = 3 * kTokens;
  members["b"].progress.tokens = 40 * 3 * kTokens;
  // 400 tokens a step from 16,000 on.
  EXPECT_EQ(StopStep(members, 19'601, 0), 50);
}

}  // namespace
}  // namespace causeway::server
