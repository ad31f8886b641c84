#include "server/round/pace.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/unit/server/round/member_table.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kBudgetLease = absl::Seconds(9);  // 9 steps of a second; notice: 6.
constexpr int64_t kTokens = 100;                           // Tokens per inner step.

Member BudgetWorker(const std::string& id, int64_t step, int64_t pace_milli = 1000) {
  Member member = Active(id, step);
  member.progress.pace_milli = pace_milli;
  member.progress.inner_step_time = absl::Milliseconds(pace_milli);
  member.progress.tokens = step * kTokens * 1000 / pace_milli;
  return member;
}

TEST(TokenBudgetTest, NothingIsAnnouncedWhileTheEndIsFar) {
  EXPECT_EQ(StopStepForTokens(Table({BudgetWorker("a", 40), BudgetWorker("b", 40)}), kTokens,
                              20'000, kBudgetLease),
            std::nullopt);
}

TEST(TokenBudgetTest, TheStepIsTheFirstOneWithTheBudgetSpent) {
  const Members members = Table({BudgetWorker("a", 91), BudgetWorker("b", 90)});
  EXPECT_EQ(StopStepForTokens(members, kTokens, 20'000, kBudgetLease), 100);
  EXPECT_EQ(StopStepForTokens(members, kTokens, 20'001, kBudgetLease), 101);
}

TEST(TokenBudgetTest, AWorkerAtPaceTwoTrainsHalfAsMuchOnTheWay) {
  const Members members = Table({BudgetWorker("a", 92), BudgetWorker("b", 92, 2000)});
  EXPECT_EQ(StopStepForTokens(members, kTokens, 15'000, kBudgetLease), 100);
}

TEST(TokenBudgetTest, ABudgetThatIsSpentSoonerThanTheWordTravelsIsExceeded) {
  EXPECT_EQ(StopStepForTokens(Table({BudgetWorker("a", 97), BudgetWorker("b", 98)}), kTokens,
                              20'000, kBudgetLease),
            98 + 6 + 1);
  EXPECT_EQ(StopStepForTokens(Table({BudgetWorker("a", 300)}), kTokens, 20'000, kBudgetLease),
            300 + 6 + 1);
}

TEST(TokenBudgetTest, WhatTheDeadTrainedCounts) {
  Member dead = BudgetWorker("b", 50);
  dead.record.set_state(v1::Member::LOST);
  const Members members = Table({BudgetWorker("a", 95), dead});
  EXPECT_EQ(TokensTrained(members), 14'500);
  EXPECT_EQ(StopStepForTokens(members, kTokens, 15'200, kBudgetLease), 102);
}

TEST(TokenBudgetTest, WithoutAnySpeedThereIsNoEstimate) {
  EXPECT_EQ(StopStepForTokens({}, kTokens, 1, kBudgetLease), std::nullopt);
  Member fresh = BudgetWorker("a", 0);
  fresh.progress.inner_step_time = absl::ZeroDuration();
  EXPECT_EQ(StopStepForTokens(Table({fresh}), kTokens, 1, kBudgetLease), std::nullopt);
}

TEST(TokenBudget, ForeignTrainersSayWhatTheirStepsTrain) {
  Members members = Table({BudgetWorker("a", 40), BudgetWorker("b", 40)});
  EXPECT_EQ(StopStepForTokens(members, 0, 20'000, kBudgetLease), std::nullopt);
  for (auto& [id, member] : members) member.progress.tokens_per_second = kTokens;
  EXPECT_EQ(StopStepForTokens(members, 0, 10'000, kBudgetLease),
            StopStepForTokens(members, kTokens, 10'000, kBudgetLease));
  members["b"].progress.tokens_per_second = 3 * kTokens;
  members["b"].progress.tokens = 40 * 3 * kTokens;
  // 400 tokens a step from 16,000 on.
  EXPECT_EQ(StopStepForTokens(members, 0, 19'601, kBudgetLease), 50);
}

}  // namespace
}  // namespace causeway::server
