#include "server/round/plausibility.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/from_text.h"
#include "tests/unit/server/round/member_table.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;

v1::RunConfig Config() {
  return FromText<v1::RunConfig>(R"(
      model { sequence_length: 8 } train { batch_sequences: 4 steps: 1000 }
      sync { steps_between_syncs: 10 overlap_steps: 3 })");
}

OpenRound RoundAt(int fragment, int64_t send_step) {
  OpenRound round;
  round.fragment = fragment;
  round.send_step = send_step;
  return round;
}

TEST(PlausibilityTest, NobodyGetsBeyondTheFirstAnswerThatThereIsNot) {
  v1::RunConfig config = Config();
  const std::vector<OpenRound> open = {RoundAt(0, 35), RoundAt(1, 30)};
  EXPECT_EQ(LargestPossibleStep(open, config), 33);
  config.mutable_membership()->set_max_pace(2.5);
  EXPECT_EQ(LargestPossibleStep(open, config), 35) << "an inner step may pass it by two";
  config.mutable_train()->set_steps(20);
  EXPECT_EQ(LargestPossibleStep(open, config), 20);
}

TEST(PlausibilityTest, TokensAreThoseOfTheStepsSinceTheLastAcceptedDelta) {
  TokenLedger ledger(32, 0);
  EXPECT_EQ(ledger.Most(0, "a", 10), 320);
  ledger.Add(0, "a", 320, 10);
  EXPECT_EQ(ledger.Most(0, "a", 20), 320);
  EXPECT_EQ(ledger.Most(1, "a", 20), 640) << "every fragment counts for itself";
  EXPECT_EQ(ledger.Most(0, "a", 40), 960) << "two late deltas are folded into the third";
  EXPECT_EQ(ledger.Most(0, "b", 20), 640);
}

TEST(PlausibilityTest, WhoStartsAnewHasTrainedNothingBefore) {
  TokenLedger ledger(32, 0);
  ledger.Begin("a", 95);
  EXPECT_EQ(ledger.Most(0, "a", 100), 160);
  ledger.Begin("a", 50);
  EXPECT_EQ(ledger.Most(0, "a", 100), 160);
}

TEST(PlausibilityTest, WhatASiteOfARegionHasNotSentComesLater) {
  TokenLedger ledger(32, 0);
  ledger.Begin("eu", 0, 3);
  EXPECT_EQ(ledger.Most(0, "eu", 10), 960);
  ledger.Add(0, "eu", 320, 10);  // Two of its sites were late.
  EXPECT_EQ(ledger.Most(0, "eu", 20), 640 + 960);
  ledger.Add(0, "eu", 0, 20);
  EXPECT_EQ(ledger.Most(0, "eu", 30), 640 + 2 * 960);
  ledger.Add(0, "eu", 640 + 2 * 960, 30);
  EXPECT_EQ(ledger.Most(0, "eu", 40), 960);
}

TEST(PlausibilityTest, ARestartBooksWhatWasSentBeforeItsWorkerBeganAgain) {
  TokenLedger living(32, 2);
  living.Add(0, "a", 320, 10);
  living.Begin("a", 25);
  living.Add(0, "a", 192, 30);  // A step more than there were.
  TokenLedger restarted(32, 2);
  restarted.Begin("a", 25);
  restarted.Add(0, "a", 320, 10);
  restarted.Add(0, "a", 192, 30);
  EXPECT_EQ(living.Most(0, "a", 40), 352);
  EXPECT_EQ(restarted.Most(0, "a", 40), 352);
}

TEST(PlausibilityTest, TheReserveCountsOnce) {
  TokenLedger ledger(32, 2);
  EXPECT_EQ(ledger.Most(0, "a", 10), 384);
  ledger.Add(0, "a", 384, 10);
  EXPECT_EQ(ledger.Most(0, "a", 20), 320);
  ledger.Add(0, "a", 256, 20);  // A long inner step belongs to the next period.
  EXPECT_EQ(ledger.Most(0, "a", 30), 384);
}

TEST(PlausibilityTest, WhereAStepIsNotKnownNoClaimIsCutByIt) {
  const TokenLedger ledger(0, 2);
  EXPECT_EQ(ledger.Most(0, "a", 10), std::numeric_limits<int64_t>::max());
}

TEST(PlausibilityTest, LargeFiguresDoNotOverflow) {
  TokenLedger ledger(int64_t{1} << 40, 100);
  EXPECT_EQ(ledger.Most(0, "a", int64_t{1} << 40), std::numeric_limits<int64_t>::max());
  ledger.Add(0, "a", int64_t{1} << 48, int64_t{1} << 40);
  EXPECT_EQ(ledger.Most(0, "a", 5), (int64_t{1} << 40) * 100);
}

TEST(PlausibilityTest, UnknownTrainersAreHeldAgainstTheMedianOfTheOthers) {
  EXPECT_THAT(WithinMedian(std::vector<int64_t>{100, 120, int64_t{1} << 48, 110}),
              ElementsAre(100, 120, 880, 110));
  EXPECT_THAT(WithinMedian(std::vector<int64_t>{100, 700}), ElementsAre(100, 700))
      << "sites may be as unequal as that";
  EXPECT_THAT(WithinMedian(std::vector<int64_t>{5000}), ElementsAre(5000));
  EXPECT_THAT(WithinMedian(std::vector<int64_t>{0, 5000}), ElementsAre(0, 8));
}

Member WorkerThatSays(const std::string& id, int64_t step, int64_t tokens, double step_seconds) {
  Member member = Active(id, step);
  member.progress.tokens = tokens;
  member.progress.inner_step_time = absl::Seconds(step_seconds);
  return member;
}

TEST(PlausibilityTest, AHeartbeatsTokensAreThoseOfItsSteps) {
  const auto believed = Believed(
      Table({WorkerThatSays("a", 20, 640, 1), WorkerThatSays("b", 20, int64_t{1} << 48, 1)}),
      Config());
  EXPECT_EQ(believed.at("a").progress.tokens, 640);
  EXPECT_EQ(believed.at("b").progress.tokens, 960) << "and a period that it may have repeated";
}

TEST(PlausibilityTest, WhereAStepIsNotKnownTheOthersSayWhatIsTrained) {
  v1::RunConfig config = Config();
  config.clear_model();
  const auto believed =
      Believed(Table({WorkerThatSays("a", 10, 1000, 1), WorkerThatSays("b", 10, 3000, 1),
                      WorkerThatSays("c", 10, int64_t{1} << 48, 1)}),
               config);
  EXPECT_EQ(believed.at("a").progress.tokens, 1000);
  EXPECT_EQ(believed.at("b").progress.tokens, 3000);
  EXPECT_EQ(believed.at("c").progress.tokens, 8000);
}

TEST(PlausibilityTest, ASpeedInTokensIsHeldAgainstTheOthersToo) {
  v1::RunConfig config = Config();
  config.clear_model();
  Member honest = WorkerThatSays("a", 10, 1000, 1);
  honest.progress.tokens_per_second = 100;
  Member liar = WorkerThatSays("liar", 10, 1000, 1);
  liar.progress.tokens_per_second = 1e15;
  const auto believed = Believed(Table({honest, liar}), config);
  EXPECT_EQ(believed.at("a").progress.tokens_per_second, 100);
  EXPECT_NEAR(believed.at("liar").progress.tokens_per_second, 800, 1e-6);
}

TEST(PlausibilityTest, OfFourSpeedsTheFastestIsConfirmedByASecondOne) {
  const auto four =
      Believed(Table({WorkerThatSays("a", 1, 0, 1), WorkerThatSays("b", 1, 0, 1.1),
                      WorkerThatSays("c", 1, 0, 2), WorkerThatSays("liar", 1, 0, 1e-6)}),
               Config());
  EXPECT_EQ(four.at("liar").progress.inner_step_time, absl::Seconds(1));
  EXPECT_EQ(four.at("c").progress.inner_step_time, absl::Seconds(2));
  const auto three = Believed(Table({WorkerThatSays("a", 1, 0, 1), WorkerThatSays("b", 1, 0, 2),
                                     WorkerThatSays("c", 1, 0, 2)}),
                              Config());
  EXPECT_EQ(three.at("a").progress.inner_step_time, absl::Seconds(1));
}

NormHistory Filled(size_t count, double norm) {
  NormHistory history;
  for (size_t i = 0; i < count; ++i) history.Add(norm);
  return history;
}

TEST(OutlierTest, WhoIsFarAboveTheMedianOfAHistoryIsOne) {
  struct Case {
    const char* what;
    size_t history;
    double usual, norm, factor;
    bool outlier;
  };
  const Case cases[] = {{"no history yet", kNormMinimum - 1, 1, 1e30, 10, false},
                        {"the first that is judged", kNormMinimum, 1, 1e30, 10, true},
                        {"the bound may be reached", kNormMinimum, 2, 20, 10, false},
                        {"and not passed", kNormMinimum, 2, 20.001, 10, true},
                        {"small deltas do no harm", kNormMinimum, 2, 0, 10, false},
                        {"off", kNormWindow, 1, 1e30, 0, false},
                        {"zeros judge nobody", kNormWindow, 0, 1, 10, false}};
  for (const Case& c : cases) {
    EXPECT_EQ(IsOutlier(c.norm, Filled(c.history, c.usual), c.factor), c.outlier) << c.what;
  }
}

TEST(OutlierTest, TheMedianIsOfTheLastNormsAndAFewLargeOnesDoNotMoveIt) {
  NormHistory history = Filled(kNormWindow, 100);
  EXPECT_EQ(history.Median(), 100);
  for (size_t i = 0; i < kNormWindow / 2; ++i) history.Add(1);
  EXPECT_EQ(history.Median(), 50.5);
  history.Add(1);
  EXPECT_EQ(history.Median(), 1);
  NormHistory short_history = Filled(kNormMinimum, 1);
  short_history.Add(1000);
  short_history.Add(1000);
  EXPECT_TRUE(IsOutlier(11, short_history, 10));
}

}  // namespace
}  // namespace causeway::server
