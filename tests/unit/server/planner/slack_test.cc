// Tests what is amiss in a simulated run, and the slack that spares its workers the wait.
#include "server/planner/slack.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/planner/disturbance_text.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two sites with steps of 1 s, ten fragments of 1e8 values of 4 bits, H 100, tau 2: a fragment
// every ten steps. 400 steps count.
StarSetting TwoSitesWithSlack(double bit_per_s = kUnlimited) {
  StarSetting setting;
  setting.sites = {{.name = "a", .up_bit_per_s = bit_per_s, .down_bit_per_s = bit_per_s},
                   {.name = "b", .up_bit_per_s = bit_per_s, .down_bit_per_s = bit_per_s}};
  setting.fragment_values.assign(10, 1e8);
  setting.overlap_steps = 2;
  setting.bits_up = 4;
  setting.bits_down = 4;
  return setting;
}

StarSetting Disturbed(const Disturbances& disturbances, double bit_per_s = kUnlimited) {
  StarSetting setting = TwoSitesWithSlack(bit_per_s);
  setting.disturbances = disturbances;
  return setting;
}

Interruptions ParsedInterruptions(absl::string_view text) {
  return ParseInterruptions(text).value();
}

StarResult SimulatedSlack(const StarSetting& setting) {
  const absl::StatusOr<StarResult> result = SimulateStar(setting);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : StarResult();
}

TEST(Slack, AnOutageIsWaitedForFromTheFirstMissingAnswerOn) {
  // The send after step 210 is answered when the coordinator is back, at 229.5; it is due at 212.
  StarSetting setting =
      Disturbed({.outages = ParsedInterruptions("20s@205500ms"), .return_seconds = 4});
  const StarResult rigid = SimulatedSlack(setting);
  EXPECT_NEAR(rigid.utilization, 400 / (400 + 17.5), 1e-9);
  EXPECT_THAT(rigid.late_steps, ElementsAre(18, 18));
  setting.max_overlap_steps = 12;  // Waits from 222 on.
  EXPECT_NEAR(SimulatedSlack(setting).utilization, 400 / (400 + 7.5), 1e-9);
  setting.max_overlap_steps = 19;
  EXPECT_NEAR(SimulatedSlack(setting).utilization, 400 / 400.5, 1e-9);
  setting.max_overlap_steps = 20;
  const StarResult elastic = SimulatedSlack(setting);
  EXPECT_EQ(elastic.utilization, 1);
  // The next fragment's answer, due at 222, is late at the same time.
  EXPECT_THAT(elastic.late_steps, ElementsAre(18, 18));
}

TEST(Slack, AnOutageThatNobodyNeedsTheCoordinatorInCostsNothing) {
  EXPECT_THAT(
      SimulatedSlack(Disturbed({.outages = ParsedInterruptions("3s@202s"), .return_seconds = 1}))
          .late_steps,
      IsEmpty());
}

TEST(Slack, WhatIsOnItsWayWhenTheCoordinatorGoesIsNotSentAgain) {
  // 4 s per delta, 4 s per answer; away while the delta of step 210 is half there.
  StarSetting setting =
      Disturbed({.outages = ParsedInterruptions("10s@212s"), .return_seconds = 2}, 1e8);
  setting.overlap_steps = 30;
  EXPECT_NEAR(SimulatedSlack(setting).longest_exchange_seconds, 8 + 12, 1e-6);
}

TEST(Slack, ASilentLinkAndASlowerOneMakeAnExchangeLonger) {
  StarSetting setting = Disturbed({.silences = ParsedInterruptions("3s@211s")}, 1e8);
  setting.overlap_steps = 30;
  EXPECT_NEAR(SimulatedSlack(setting).longest_exchange_seconds, 8 + 3, 1e-6);
  setting.disturbances = {.least_rate = 0.5, .most_rate = 0.5};
  EXPECT_NEAR(SimulatedSlack(setting).exchange_seconds, 16, 1e-6);
  // The same where the coordinator's link is shared.
  setting.coordinator.in_bit_per_s = 1.9e8;
  setting.coordinator.out_bit_per_s = 1.9e8;
  EXPECT_NEAR(SimulatedSlack(setting).exchange_seconds, 16, 1e-6);
  setting.disturbances = {.least_rate = 0.5, .most_rate = 1};
  const double jittering = SimulatedSlack(setting).exchange_seconds;
  EXPECT_GT(jittering, 9);
  EXPECT_LT(jittering, 14);
}

TEST(Slack, ASilentUnlimitedLinkIsSilent) {
  EXPECT_THAT(SimulatedSlack(Disturbed({.silences = ParsedInterruptions("5s@209s")})).late_steps,
              ElementsAre(2, 2));
}

TEST(Slack, AStragglersLongStepIsWaitedForByTheOthersAlone) {
  StarSetting setting = Disturbed({.stragglers = ParsedInterruptions("10s/200s")});
  setting.steps = 20'100;
  const StarResult rigid = SimulatedSlack(setting);
  EXPECT_LT(rigid.utilization, 0.97);
  setting.max_overlap_steps = 99;
  const StarResult elastic = SimulatedSlack(setting);
  EXPECT_EQ(elastic.utilization, 1);
  // A twentieth of the time is lost with or without slack.
  EXPECT_NEAR(elastic.goodput, 0.952, 0.003);
  EXPECT_LT(rigid.goodput, elastic.goodput - 0.02);
}

TEST(Slack, StepsThatSpreadKeepTheirMean) {
  StarSetting setting = Disturbed({.step_spread = 0.3});
  setting.max_overlap_steps = 99;
  setting.steps = 20'100;
  const StarResult result = SimulatedSlack(setting);
  EXPECT_NEAR(result.seconds_per_step, 1, 0.01);
  // Steps of other lengths are no loss; only the slower site is still there at the end.
  EXPECT_NEAR(result.goodput, result.utilization, 0.005);
}

TEST(Slack, TheSameSeedDisturbsAlike) {
  const Disturbances all = {.outages = ParsedInterruptions("exp:20s/exp:5m"),
                            .silences = ParsedInterruptions("3s/1m"),
                            .least_rate = 0.3,
                            .stragglers = ParsedInterruptions("1s..9s/exp:3m"),
                            .step_spread = 0.1};
  StarSetting setting = Disturbed(all, 1e8);
  setting.steps = 2000;
  const StarResult one = SimulatedSlack(setting);
  const StarResult two = SimulatedSlack(setting);
  EXPECT_EQ(one.seconds, two.seconds);
  EXPECT_EQ(one.late_steps, two.late_steps);
  setting.seed = 2;
  EXPECT_NE(SimulatedSlack(setting).seconds, one.seconds);
}

TEST(Slack, ALinkThatNeverCatchesUpIsLateToTheEnd) {
  // A fragment of 20 s, each way, every ten steps.
  const StarResult result = SimulatedSlack(TwoSitesWithSlack(2e7));
  EXPECT_LT(result.utilization, 0.6);
  ASSERT_FALSE(result.late_steps.empty());
  EXPECT_GT(result.late_steps.back(), 30);
}

TEST(Slack, IsStudiedWithNoneAndWithAll) {
  StarSetting setting =
      Disturbed({.outages = ParsedInterruptions("20s@205500ms"), .return_seconds = 4});
  setting.max_overlap_steps = 12;
  const absl::StatusOr<SlackStudy> study = StudySlack(setting);
  ASSERT_TRUE(study.ok()) << study.status();
  EXPECT_NEAR(study->without.utilization, 400 / (400 + 17.5), 1e-9);
  EXPECT_EQ(study->most.utilization, 1);
  EXPECT_THAT(study->most.late_steps, ElementsAre(18, 18));
}

TEST(Slack, QuantilesAreOfWhatWasLate) {
  const std::vector<int> late = {1, 1, 2, 3, 3, 3, 4, 5, 8, 40};
  EXPECT_EQ(SlackFor(late, 0.5), 3);
  EXPECT_EQ(SlackFor(late, 0.9), 8);
  EXPECT_EQ(SlackFor(late, 0.91), 40);
  EXPECT_EQ(SlackFor(late, 1), 40);
  EXPECT_EQ(SlackFor({}, 0.99), 0);
  EXPECT_EQ(SlackForWaits(late, 0), 40);
  EXPECT_EQ(SlackForWaits(late, 31.5), 9);
  EXPECT_EQ(SlackForWaits(late, 32), 8);
  EXPECT_EQ(SlackForWaits(late, 34), 7);
  EXPECT_EQ(SlackForWaits(late, 70), 0);
  EXPECT_EQ(SlackForWaits({}, 0), 0);
}

TEST(Slack, SettingsThatMakeNoSenseAreRefusedByName) {
  StarSetting setting = TwoSitesWithSlack();
  setting.max_overlap_steps = 1;
  EXPECT_THAT(std::string(SimulateStar(setting).status().message()),
              HasSubstr("max_overlap_steps must be 0, or overlap_steps .. H - 1 = 2 .. 99"));
  setting.max_overlap_steps = 100;
  EXPECT_FALSE(SimulateStar(setting).ok());
  setting = Disturbed({.outages = ParsedInterruptions("2h/1h")});
  EXPECT_THAT(std::string(SimulateStar(setting).status().message()), HasSubstr("outages"));
  setting = Disturbed({.step_spread = 0.1});
  setting.tiers = {{.count = 4}};
  EXPECT_THAT(std::string(SimulateStar(setting).status().message()), HasSubstr("one region"));
}

}  // namespace
}  // namespace causeway::server
