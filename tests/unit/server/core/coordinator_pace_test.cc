// The coordinator's use of the speeds that workers report: paces, windows, the token budget.

#include "gmock/gmock.h"
#include "tests/unit/server/core/toy_run.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// H = 6: a period is six steps.
constexpr char kPaces[] = "membership { max_pace: 4 }";

TEST(CoordinatorPaceTest, TheSlowerWorkerIsToldItsPaceOnce) {
  TwoWorkers two(kPaces);
  two.TrainBoth(7);
  ASSERT_TRUE(two.b.ReportSpeed(7, 2).ok());
  EXPECT_EQ(two.b.sink().Count(v1::Directive::SET_PACE), 0) << "slower than whom?";
  ASSERT_TRUE(two.a.ReportSpeed(8, 1).ok());
  ASSERT_TRUE(two.b.ReportSpeed(8, 2).ok());
  const std::vector<v1::Directive> orders = two.b.sink().Directives(v1::Directive::SET_PACE);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].pace_milli(), 2080);
  EXPECT_EQ(orders[0].step(), 12) << "with the next period";
  EXPECT_EQ(two.a.sink().Count(v1::Directive::SET_PACE), 0);
  EXPECT_EQ(two.run.events.Count("pace_set"), 1);
  two.TrainBoth(5);
  ASSERT_TRUE(two.b.ReportSpeed(13, 2, 2080).ok());
  EXPECT_EQ(two.b.sink().Count(v1::Directive::SET_PACE), 1);
  const v1::RunStatus status = two.run.status();
  EXPECT_EQ(status.workers(0).pace(), 1);
  EXPECT_EQ(status.workers(1).pace(), 2.08);
}

TEST(CoordinatorPaceTest, AWorkerThatComesBackIsToldAgain) {
  TwoWorkers two(kPaces);
  two.TrainBoth(7);
  ASSERT_TRUE(two.a.ReportSpeed(8, 1).ok());
  ASSERT_TRUE(two.b.ReportSpeed(8, 2).ok());
  ASSERT_TRUE(two.b.Join().ok());
  ASSERT_TRUE(two.b.Ready(8).ok());
  const std::vector<v1::Directive> orders = two.b.sink().Directives(v1::Directive::SET_PACE);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].pace_milli(), 2080);
  EXPECT_EQ(orders[0].step(), 12);
}

TEST(CoordinatorPaceTest, ImplausibleSpeedsAreIgnored) {
  TwoWorkers two(kPaces);
  two.TrainBoth(7);
  ASSERT_TRUE(two.a.ReportSpeed(8, 1).ok());
  for (const double seconds : {-1.0, 1e300, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
    ASSERT_TRUE(two.b.ReportSpeed(8, seconds).ok());
    EXPECT_EQ(two.b.sink().Count(v1::Directive::SET_PACE), 0) << seconds;
  }
}

// Of two workers whose steps take two seconds one sends after step 2 and the other one does not:
// the window closes just before the first one needs the answer.
void ExpectWindowToEnd(int overlap, int longest_overlap, int64_t after_ms) {
  TwoWorkers two(absl::StrCat("membership { grace_ms: 60000 adaptive_grace: true } sync { ",
                              "overlap_steps: ", overlap, " max_overlap_steps: ", longest_overlap,
                              " }"));
  two.a.Train();
  two.a.Train();
  ASSERT_TRUE(two.a.ReportSpeed(1, 2).ok());
  ASSERT_TRUE(two.b.ReportSpeed(1, 2).ok());
  ASSERT_TRUE(two.a.SendDue().ok());
  two.run.clock.Advance(absl::Milliseconds(after_ms - 300));
  two.run.coordinator->Tick();
  EXPECT_TRUE(two.run.store.rounds().empty());
  EXPECT_THAT(two.run.status().fragments(0).waiting_for(), HasSubstr("then a needs the answer"));
  two.run.clock.Advance(absl::Milliseconds(200));
  two.run.coordinator->Tick();
  ASSERT_EQ(two.run.store.rounds().size(), 1u);
  EXPECT_THAT(two.run.store.rounds()[0].contributors(), ElementsAre("a"));
  EXPECT_EQ(two.b.Push(0, 1).code(), absl::StatusCode::kAborted);
}

TEST(CoordinatorPaceTest, AnAdaptiveWindowEndsWhenTheFirstContributorNeedsTheAnswer) {
  ExpectWindowToEnd(3, 3, 6000);  // Needed after step 5.
}

TEST(CoordinatorPaceTest, AnAdaptiveWindowCountsOnTheSlackOfAnOverlapThatGivesWay) {
  ExpectWindowToEnd(1, 4, 8000);  // Due after step 3, and waited for after step 6.
}

// 64 tokens per inner step and worker, steps of five seconds, a lease of ten.
TEST(CoordinatorPaceTest, ATokenBudgetEndsTheRunAtOneStepForAll) {
  TwoWorkers two;
  ASSERT_TRUE(two.run.orders().StopAtTokens(2 * 64 * 30).ok());
  two.TrainBoth(19);
  ASSERT_TRUE(two.a.ReportSpeed(20, 5).ok());
  ASSERT_TRUE(two.b.ReportSpeed(20, 5).ok());
  EXPECT_EQ(two.a.sink().Count(v1::Directive::STOP_AT_STEP), 0);
  two.TrainBoth(8);
  ASSERT_TRUE(two.a.ReportSpeed(28, 5).ok());
  ASSERT_TRUE(two.b.ReportSpeed(28, 5).ok());
  for (const ToyWorker* worker : {&two.a, &two.b}) {
    const std::vector<v1::Directive> orders =
        worker->sink().Directives(v1::Directive::STOP_AT_STEP);
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].step(), 31) << "28 and two steps of notice lie before it";
  }
  two.TrainBoth(2);
  ASSERT_TRUE(two.b.ReportSpeed(30, 5).ok());
  EXPECT_EQ(two.a.sink().Count(v1::Directive::STOP_AT_STEP), 1) << "announced once";
  EXPECT_EQ(two.run.events.Count("stopping"), 2);
}

TEST(CoordinatorPaceTest, TheTokenBudgetOfTheConfigurationHoldsAcrossARestart) {
  TwoWorkers two("train { tokens: 3840 }");
  two.TrainBoth(19);
  ASSERT_TRUE(two.a.ReportSpeed(20, 5).ok());
  ASSERT_TRUE(two.b.ReportSpeed(20, 5).ok());
  two.run.coordinator->Maintain();
  two.Restart();
  two.TrainBoth(8);
  ASSERT_TRUE(two.b.ReportSpeed(28, 5).ok());
  ASSERT_TRUE(two.a.ReportSpeed(28, 5).ok());
  EXPECT_EQ(two.a.sink().Count(v1::Directive::STOP_AT_STEP), 1);
  two.run.Restart();
  ASSERT_TRUE(two.b.Join().ok());
  ASSERT_TRUE(two.b.Ready(28).ok());
  ASSERT_EQ(two.b.sink().Count(v1::Directive::STOP_AT_STEP), 1);
  EXPECT_EQ(two.b.sink().Directives(v1::Directive::STOP_AT_STEP)[0].step(), 31);
}

TEST(CoordinatorPaceTest, ABudgetThatIsSpentIsRefused) {
  TwoWorkers two;
  two.TrainBoth(19);
  ASSERT_TRUE(two.a.ReportSpeed(20, 5).ok());
  EXPECT_EQ(two.run.orders().StopAtTokens(20 * 64).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(two.run.orders().StopAtTokens(0).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace causeway::server
