#include "server/round/token_budget.h"

#include <string>

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using Members = std::map<std::string, Member>;

constexpr absl::Duration kLease = absl::Seconds(9);  // 9 steps of a second; notice: 6.
constexpr int64_t kTokens = 100;                     // Of an inner step.

Member Worker(const std::string& id, int64_t step, int64_t pace_milli = 1000) {
  Member member;
  member.id = id;
  member.state = MemberState::kActive;
  member.step = step;
  member.progress.pace_milli = pace_milli;
  member.progress.inner_step_time = absl::Milliseconds(pace_milli);
  member.progress.tokens = step * kTokens * 1000 / pace_milli;
  return member;
}

Members Table(std::initializer_list<Member> list) {
  Members members;
  for (const Member& member : list) members[member.id] = member;
  return members;
}

TEST(TokenBudgetTest, NothingIsAnnouncedWhileTheEndIsFar) {
  EXPECT_EQ(StopStepForTokens(Table({Worker("a", 40), Worker("b", 40)}), kTokens, 20'000, kLease),
            std::nullopt);
}

TEST(TokenBudgetTest, TheStepIsTheFirstOneWithTheBudgetSpent) {
  const Members members = Table({Worker("a", 91), Worker("b", 90)});
  EXPECT_EQ(StopStepForTokens(members, kTokens, 20'000, kLease), 100);
  EXPECT_EQ(StopStepForTokens(members, kTokens, 20'001, kLease), 101);
}

TEST(TokenBudgetTest, AWorkerAtPaceTwoTrainsHalfAsMuchOnTheWay) {
  const Members members = Table({Worker("a", 92), Worker("b", 92, 2000)});
  EXPECT_EQ(StopStepForTokens(members, kTokens, 15'000, kLease), 100);
}

TEST(TokenBudgetTest, ABudgetThatIsSpentSoonerThanTheWordTravelsIsExceeded) {
  EXPECT_EQ(StopStepForTokens(Table({Worker("a", 97), Worker("b", 98)}), kTokens, 20'000, kLease),
            98 + 6 + 1);
  EXPECT_EQ(StopStepForTokens(Table({Worker("a", 300)}), kTokens, 20'000, kLease), 300 + 6 + 1);
}

TEST(TokenBudgetTest, WhatTheDeadTrainedCounts) {
  Member dead = Worker("b", 50);
  dead.state = MemberState::kLost;
  const Members members = Table({Worker("a", 95), dead});
  EXPECT_EQ(TokensTrained(members), 14'500);
  EXPECT_EQ(StopStepForTokens(members, kTokens, 15'200, kLease), 102);
}

TEST(TokenBudgetTest, WithoutAnySpeedThereIsNoEstimate) {
  EXPECT_EQ(StopStepForTokens({}, kTokens, 1, kLease), std::nullopt);
  Member fresh = Worker("a", 0);
  fresh.progress.inner_step_time = absl::ZeroDuration();
  EXPECT_EQ(StopStepForTokens(Table({fresh}), kTokens, 1, kLease), std::nullopt);
}

TEST(TokenBudget, ForeignTrainersSayWhatTheirStepsTrain) {
  Members members = Table({Worker("a", 40), Worker("b", 40)});
  EXPECT_EQ(StopStepForTokens(members, 0, 20'000, kLease), std::nullopt);
  for (auto& [id, member] : members) member.progress.tokens_per_second = kTokens;
  EXPECT_EQ(StopStepForTokens(members, 0, 10'000, kLease),
            StopStepForTokens(members, kTokens, 10'000, kLease));
  members["b"].progress.tokens_per_second = 3 * kTokens;
  members["b"].progress.tokens = 40 * 3 * kTokens;
  // 400 tokens a step from 16,000 on.
  EXPECT_EQ(StopStepForTokens(members, 0, 20'001, kLease), 51);
}

}  // namespace
}  // namespace causeway::server
