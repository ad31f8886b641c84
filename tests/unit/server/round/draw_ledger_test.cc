#include "server/round/plausibility.h"

#include "gtest/gtest.h"

namespace causeway::server {
namespace {

constexpr int64_t kDrawsPerStep = 4;
constexpr int64_t kReserve = 10;  // Steps.

TEST(DrawLedger, APartGoesOnBeyondWhatAnybodyContributedOfIt) {
  DrawLedger ledger(kDrawsPerStep, kReserve);
  EXPECT_EQ(ledger.NextDraw(2, "a"), 0);
  ledger.Add("a", {{2, 0, 16}}, 4);
  ledger.Add("a", {{2, 16, 24}, {3, 5, 6}}, 8);
  ledger.Add("b", {{2, 8, 12}}, 8);
  EXPECT_EQ(ledger.NextDraw(2, "c"), 24) << "whoever takes it over";
  EXPECT_EQ(ledger.NextDraw(3, "a"), 6);
  EXPECT_EQ(ledger.NextDraw(0, "a"), 0);
}

TEST(DrawLedger, DataOfOnesOwnAreCountedByWorker) {
  DrawLedger ledger(kDrawsPerStep, kReserve);
  ledger.Add("a", {{kOwnData, 0, 16}}, 4);
  EXPECT_EQ(ledger.NextDraw(kOwnData, "a"), 16);
  EXPECT_EQ(ledger.NextDraw(kOwnData, "b"), 0);
  EXPECT_EQ(ledger.PossibleEnd(kOwnData, 4), kMaxDraw) << "nobody else's text is lost by it";
}

TEST(DrawLedger, NobodyHasTrainedMoreThanTheStepsThatPassedAndTheReserve) {
  DrawLedger ledger(kDrawsPerStep, kReserve);
  EXPECT_EQ(ledger.PossibleEnd(0, 5), 4 * 5 + 40);
  ledger.Add("a", {{0, 0, 20}}, 5);
  EXPECT_EQ(ledger.PossibleEnd(0, 5), 20 + 40);
  EXPECT_EQ(ledger.PossibleEnd(0, 8), 20 + 12 + 40);
  EXPECT_EQ(ledger.PossibleEnd(0, 2), 20 + 40) << "a round that was sent earlier";
}

TEST(DrawLedger, TheReserveIsUsedUpByWhoeverClaimsIt) {
  DrawLedger ledger(kDrawsPerStep, kReserve);
  for (int64_t step = 1; step <= 100; ++step) {
    const int64_t end = ledger.PossibleEnd(0, step);
    ledger.Add("greedy", {{0, ledger.NextDraw(0, ""), end}}, step);
  }
  EXPECT_EQ(ledger.NextDraw(0, ""), 4 * 100 + 40) << "once, not in every round";
}

TEST(DrawLedger, WhoeverTrainsAsItShouldNeverMeetsTheBound) {
  DrawLedger ledger(kDrawsPerStep, kReserve);
  for (int64_t step = 3; step <= 3000; step += 3) {
    ASSERT_GE(ledger.PossibleEnd(0, step), 4 * step);
    ledger.Add("a", {{0, 4 * (step - 3), 4 * step}}, step);
  }
}

TEST(DrawLedger, ATakeoverThatRepeatsStepsHasTheReserveAnew) {
  DrawLedger ledger(kDrawsPerStep, kReserve);
  int64_t next = 0;
  for (int64_t life = 0; life < 50; ++life) {
    // Each begins six steps before what the last one contributed, with other draws.
    ledger.Give(0, 10 + 4 * life);
    const int64_t step = 20 + 4 * life;
    ASSERT_GE(ledger.PossibleEnd(0, step), next + 40);
    ledger.Add("a", {{0, next, next + 40}}, step);
    next += 40;
  }
}

TEST(DrawLedger, APartThatIsGivenLateCanOnlyHaveBeenDrawnSince) {
  DrawLedger ledger(kDrawsPerStep, kReserve);
  ledger.Give(3, 5000);
  EXPECT_EQ(ledger.PossibleEnd(3, 5003), 4 * 3 + 40);
}

TEST(DrawLedger, TheLongestRunDoesNotOverflow) {
  DrawLedger ledger(int64_t{1} << 20, kReserve);
  EXPECT_EQ(ledger.PossibleEnd(0, int64_t{1} << 40), kMaxDraw);
  ledger.Add("a", {{0, 0, kMaxDraw}}, int64_t{1} << 40);
  EXPECT_EQ(ledger.NextDraw(0, ""), kMaxDraw);
  EXPECT_EQ(ledger.PossibleEnd(0, int64_t{1} << 40), kMaxDraw);
}

}  // namespace
}  // namespace causeway::server
