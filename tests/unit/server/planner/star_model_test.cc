#include "server/planner/star_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

// Two sites with steps of 1 s, ten fragments of 1e8 values, H = 100: a fragment every ten steps.
StarSetting TwoSites(double bit_per_s) {
  StarSetting setting;
  setting.sites = {{.name = "a", .up_bit_per_s = bit_per_s, .down_bit_per_s = bit_per_s},
                   {.name = "b", .up_bit_per_s = bit_per_s, .down_bit_per_s = bit_per_s}};
  setting.fragment_values.assign(10, 1e8);
  setting.bits_up = 4;
  setting.bits_down = 4;
  return setting;
}

StarResult Simulated(const StarSetting& setting) {
  const absl::StatusOr<StarResult> result = SimulateStar(setting);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : StarResult();
}

TEST(StarModel, WithoutLimitsNobodyWaits) {
  const StarResult result = Simulated(TwoSites(kUnlimited));
  EXPECT_EQ(result.utilization, 1);
  EXPECT_EQ(result.goodput, 1);
  EXPECT_EQ(result.exchange_seconds, 0);
  EXPECT_DOUBLE_EQ(result.seconds_per_step, 1);
  EXPECT_EQ(result.rounds_without_somebody, 0);
  EXPECT_EQ(result.deaths, 0);
}

TEST(StarModel, AnExchangeTakesUpMergeAndDownOneAfterAnother) {
  StarSetting setting = TwoSites(1e8);  // 4 s per delta, 4 s per answer.
  setting.sites[0].one_way_seconds = 0.25;
  setting.sites[1].one_way_seconds = 0.75;
  // 1e8 values of 24 bytes and three times half a byte: 2.55 s.
  setting.coordinator.merge_bytes_per_s = 1e9;
  setting.coordinator.commit_seconds = 0.125;
  setting.overlap_steps = 20;
  const StarResult result = Simulated(setting);
  EXPECT_EQ(result.utilization, 1);
  EXPECT_NEAR(result.longest_exchange_seconds, 4 + 0.75 + 2.55 + 0.125 + 4 + 0.75, 1e-6);
  EXPECT_NEAR(result.exchange_seconds, result.longest_exchange_seconds - 0.25, 1e-6);
}

TEST(StarModel, AnObjectTakesMoreOfTheLinkThanItsValues) {
  StarSetting setting = TwoSites(1e8);  // 4 s per delta, 4 s per answer.
  setting.object_bits = 1e8;            // Another second each.
  setting.overlap_steps = 20;
  const StarResult result = Simulated(setting);
  EXPECT_NEAR(result.longest_exchange_seconds, 10, 1e-6);
  EXPECT_NEAR(result.sites[0].up_busy, 0.5, 0.01);
}

TEST(StarModel, CoordinatorsAboveAddTheirWayThereAndBack) {
  StarSetting setting = TwoSites(1e8);          // 4 s per delta, 4 s per answer.
  setting.coordinator.merge_bytes_per_s = 1e9;  // Two contributions take 2.55 s, four 2.65 s.
  setting.coordinator.commit_seconds = 0.125;
  setting.overlap_steps = 40;
  setting.tiers = {{.count = 4, .up_bit_per_s = 2e8, .down_bit_per_s = 4e8, .one_way_seconds = 1}};
  const StarResult result = Simulated(setting);
  EXPECT_EQ(result.utilization, 1);
  const double below = 4 + 2.55 + 0.125 + 4;
  const double above = 2 + 1 + 2.65 + 0.125 + 1 + 1 + 0.125;
  EXPECT_NEAR(result.longest_exchange_seconds, below + above, 1e-6);
  ASSERT_EQ(result.tiers.size(), 1);
  EXPECT_NEAR(result.tiers[0].up_busy, 0.2, 0.005);  // 2 s of the 10 between two fragments.
  EXPECT_NEAR(result.tiers[0].down_busy, 0.1, 0.005);
  EXPECT_NEAR(result.tiers[0].merge_busy, 0.265, 0.005);
}

TEST(StarModel, ThoseBelowShareTheLinkOfTheCoordinatorAbove) {
  StarSetting setting = TwoSites(kUnlimited);
  setting.coordinator.in_bit_per_s = 4e8;  // Two sites: 2 s each. Four regions: 4 s each.
  setting.overlap_steps = 40;
  setting.tiers = {{.count = 4}};
  const StarResult result = Simulated(setting);
  EXPECT_NEAR(result.longest_exchange_seconds, 2 + 4, 1e-6);
  EXPECT_NEAR(result.tiers[0].in_busy, 0.4, 0.005);
}

TEST(StarModel, AChainOfTiersIsOnlyAsFastAsItsSlowestLink) {
  StarSetting setting = TwoSites(kUnlimited);
  setting.overlap_steps = 90;
  // The upper link takes 20 s per fragment of 10 s: half the time is waited for it, whatever tau.
  setting.tiers = {{.count = 8}, {.count = 2, .up_bit_per_s = 2e7}};
  setting.steps = 20000;
  const StarResult result = Simulated(setting);
  EXPECT_NEAR(result.utilization, 0.5, 0.06);
  EXPECT_NEAR(result.tiers[1].up_busy, 1, 0.01);
}

TEST(StarModel, TiersOfRegionsThatDifferAreRefused) {
  StarSetting setting = TwoSites(1e8);
  setting.tiers = {{.count = 4}};
  setting.failures.mean_seconds_between = 3600;
  EXPECT_THAT(SimulateStar(setting).status().message(), HasSubstr("tiers need fragments of one"));
  setting.failures.mean_seconds_between = 0;
  setting.coordinator.slices = 2;
  EXPECT_THAT(SimulateStar(setting).status().message(), HasSubstr("one region stands for all"));
}

TEST(StarModel, TheWaitIsWhatTheOverlapDoesNotHide) {
  StarSetting setting = TwoSites(1e8);
  setting.overlap_steps = 5;  // It hides 5 of 8 s: 3 s are waited every 10 steps.
  const StarResult result = Simulated(setting);
  EXPECT_NEAR(result.utilization, 10.0 / 13, 0.005);
  setting.overlap_steps = 8;
  EXPECT_EQ(Simulated(setting).utilization, 1);
}

TEST(StarModel, OneFragmentWithoutOverlapIsWaitedForWhole) {
  StarSetting setting = TwoSites(1e8);
  setting.fragment_values = {1e9};  // 40 s each way, every 100 steps.
  setting.steps = 1100;
  EXPECT_NEAR(Simulated(setting).utilization, 100.0 / 180, 0.01);
}

TEST(StarModel, WithEnoughOverlapTheBoundIsWhatALinkNeeds) {
  const double bound = ThroughputBound(1e9, 4, 100, 1);
  EXPECT_DOUBLE_EQ(bound, 4e7);
  StarSetting setting = TwoSites(bound * 1.001);
  setting.overlap_steps = 25;  // 20 s of transfer.
  const StarResult enough = Simulated(setting);
  EXPECT_EQ(enough.utilization, 1);
  EXPECT_NEAR(enough.sites[0].up_busy, 1, 0.01);
  setting = TwoSites(bound / 2);
  setting.overlap_steps = 90;
  setting.steps = 3000;
  EXPECT_NEAR(Simulated(setting).utilization, 0.5, 0.02);
}

TEST(StarModel, TheSlowerDirectionBinds) {
  StarSetting setting = TwoSites(1e9);
  for (StarSite& site : setting.sites) site.down_bit_per_s = 2e7;
  setting.overlap_steps = 90;
  setting.steps = 3000;
  const StarResult result = Simulated(setting);
  EXPECT_NEAR(result.utilization, 0.5, 0.02);
  EXPECT_GT(result.sites[0].down_busy, 0.95);
  EXPECT_LT(result.sites[0].up_busy, 0.05);
}

TEST(StarModel, TheCoordinatorsLinkIsShared) {
  StarSetting setting = TwoSites(1e9);
  setting.sites[0].count = 8;
  setting.sites.resize(1);
  setting.coordinator.in_bit_per_s = 1.6e8;  // Eight deltas of 4e8 bits take 20 s, every 10 s.
  setting.overlap_steps = 15;
  setting.steps = 20000;
  StarResult result = Simulated(setting);
  EXPECT_NEAR(result.utilization, 0.5, 0.02);
  EXPECT_NEAR(result.in_busy, 1, 0.01);
  EXPECT_LT(result.sites[0].up_busy, 0.1);
  setting.coordinator.in_bit_per_s *= 2;
  setting.overlap_steps = 21;
  result = Simulated(setting);
  EXPECT_EQ(result.utilization, 1);
  EXPECT_NEAR(result.exchange_seconds, 10.4, 0.01);
}

TEST(StarModel, SlicesLetUpAndDownOverlap) {
  StarSetting setting = TwoSites(1e8);
  setting.overlap_steps = 9;
  setting.coordinator.slices = 8;
  const StarResult result = Simulated(setting);
  // The last slice is answered half a second after it came.
  EXPECT_NEAR(result.longest_exchange_seconds, 4 + 0.5, 1e-6);
}

TEST(StarModel, ASlowSiteIsWaitedForUnlessItHasAPace) {
  StarSetting setting = TwoSites(kUnlimited);
  setting.sites[1].step_seconds = 2;
  StarResult result = Simulated(setting);
  EXPECT_NEAR(result.sites[0].utilization, 0.5, 0.01);
  EXPECT_EQ(result.sites[1].utilization, 1);
  setting.sites[1].pace = 2;
  setting.overlap_steps = 4;
  result = Simulated(setting);
  EXPECT_GT(result.sites[0].utilization, 0.99);
  EXPECT_GT(result.sites[1].utilization, 0.99);
}

TEST(StarModel, AGraceEndsTheWaitForASlowSite) {
  StarSetting setting = TwoSites(kUnlimited);
  setting.sites[1].step_seconds = 2;
  setting.coordinator.grace_seconds = 1;
  const StarResult result = Simulated(setting);
  EXPECT_GT(result.sites[0].utilization, 0.85);
  EXPECT_GT(result.rounds_without_somebody, result.rounds / 2);
}

StarSetting DyingSites() {
  StarSetting setting = TwoSites(1e9);
  setting.sites[0].count = 4;
  setting.overlap_steps = 5;
  setting.steps = 20'000;
  setting.failures.mean_seconds_between = 3000;
  setting.failures.restart_seconds = 60;
  return setting;
}

TEST(StarModel, ADeathCostsItsWorkerAndForTheLeaseTheOthers) {
  StarSetting setting = DyingSites();
  const StarResult result = Simulated(setting);
  // Five workers for 20,000 s and more.
  EXPECT_GT(result.deaths, 15);
  EXPECT_LT(result.deaths, 60);
  EXPECT_GT(result.rounds_without_somebody, 0);
  EXPECT_LT(result.utilization, 0.999);
  EXPECT_LT(result.goodput, result.utilization);
  EXPECT_GT(result.goodput, 0.9);
  // With a grace nobody waits for the dead: more of the time is computed.
  setting.coordinator.grace_seconds = 0.5;
  EXPECT_GT(Simulated(setting).utilization, result.utilization);
}

TEST(StarModel, TheSameSeedGivesTheSameRun) {
  StarSetting setting = DyingSites();
  const StarResult one = Simulated(setting);
  const StarResult two = Simulated(setting);
  EXPECT_EQ(one.seconds, two.seconds);
  EXPECT_EQ(one.goodput, two.goodput);
  EXPECT_EQ(one.deaths, two.deaths);
  setting.seed = 2;
  EXPECT_NE(Simulated(setting).seconds, one.seconds);
}

TEST(StarModel, SitesThatAreAlikeCanBeCountedOrNamed) {
  StarSetting named = TwoSites(6e7);
  named.overlap_steps = 3;
  StarSetting counted = named;
  counted.sites.resize(1);
  counted.sites[0].count = 2;
  EXPECT_EQ(Simulated(named).seconds, Simulated(counted).seconds);
}

TEST(StarModel, SettingsThatMakeNoSenseAreRefusedByName) {
  const auto refusal = [](auto change) {
    StarSetting setting = TwoSites(1e9);
    change(setting);
    return std::string(SimulateStar(setting).status().message());
  };
  EXPECT_THAT(refusal([](StarSetting& s) { s.sites.clear(); }), HasSubstr("sites"));
  EXPECT_THAT(refusal([](StarSetting& s) { s.sites[1].up_bit_per_s = 0; }), HasSubstr("site b"));
  EXPECT_THAT(refusal([](StarSetting& s) { s.fragment_values.assign(101, 1); }),
              HasSubstr("1 .. H = 100"));
  EXPECT_THAT(refusal([](StarSetting& s) { s.overlap_steps = 100; }), HasSubstr("overlap_steps"));
  EXPECT_THAT(refusal([](StarSetting& s) { s.coordinator.quorum = 3; }),
              HasSubstr("the number of workers, 2; it is 3"));
  EXPECT_THAT(refusal([](StarSetting& s) { s.object_bits = -1; }), HasSubstr("an object takes"));
  EXPECT_THAT(refusal([](StarSetting& s) { s.steps = 100; }), HasSubstr("warm-up"));
  EXPECT_THAT(refusal([](StarSetting& s) { s.failures.restart_seconds = 5; }),
              HasSubstr("lease of 10"));
}

TEST(StarModel, WorkersThatDieFasterThanTheyComeBackAreAnError) {
  StarSetting setting = TwoSites(1e5);  // The state takes hours to fetch.
  setting.failures.mean_seconds_between = 20;
  setting.steps = 100'000;
  EXPECT_THAT(std::string(SimulateStar(setting).status().message()), HasSubstr("gets nowhere"));
}

}  // namespace
}  // namespace causeway::server
