#include "server/planner/planner.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

PlanRequest TenBillion(double bit_per_s) {
  PlanRequest request;
  request.values = 10e9;
  request.sites = {{.name = "site",
                    .count = 2,
                    .step_seconds = 0.8,
                    .up_bit_per_s = bit_per_s,
                    .down_bit_per_s = bit_per_s,
                    .one_way_seconds = 0.05}};
  request.uplinks = {{v1::INT4, "int4", 4.25}, {v1::LM2, "lm2", 2.25}};
  request.downlink = {v1::INT4, "int4", 4.25};
  request.coordinator.merge_bytes_per_s = kMeasuredMergeBytesPerSecond;
  request.coordinator.commit_seconds = kMeasuredCommitSeconds;
  return request;
}

Plan Planned(const PlanRequest& request) {
  const absl::StatusOr<Plan> plan = MakePlan(request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan();
}

TEST(Planner, AFasterLinkAllowsMoreFrequentSynchronization) {
  EXPECT_EQ(Planned(TenBillion(10e9)).steps_between_syncs, 30);
  EXPECT_EQ(Planned(TenBillion(1e9)).steps_between_syncs, 100);
  EXPECT_EQ(Planned(TenBillion(0.4e9)).steps_between_syncs, 200);
}

TEST(Planner, WhatIsPlannedReachesTheTargetWithLittleOverlap) {
  const Plan plan = Planned(TenBillion(1e9));
  EXPECT_TRUE(plan.reaches_target);
  EXPECT_GE(plan.expected.utilization, 0.99);
  EXPECT_LE(plan.overlap_steps, 10);
  EXPECT_EQ(plan.up.codec, v1::INT4);
  EXPECT_EQ(plan.machines, 1);
  // 10e9 values of 4.25 bits in 100 steps of 0.8 s.
  EXPECT_NEAR(plan.needed_bit_per_s[0], 531e6, 1e6);
  // theta, momentum and published of two fragments, and what they exchange.
  EXPECT_GT(plan.coordinator_memory_bytes, 2 * 12 * 10e9 / plan.fragments);
  EXPECT_LT(plan.coordinator_memory_bytes, 5 * 12 * 10e9 / plan.fragments);
}

TEST(Planner, ALinkThatIsTooThinIsNamed) {
  const Plan plan = Planned(TenBillion(20e6));
  EXPECT_FALSE(plan.reaches_target);
  EXPECT_EQ(plan.steps_between_syncs, 500);
  EXPECT_THAT(plan.binding, HasSubstr("link of site"));
}

TEST(Planner, AThinUplinkAloneIsHelpedByTwoBits) {
  PlanRequest request = TenBillion(10e9);
  // At H = 500 int4 needs 106 Mbit/s, lm2 56.
  request.sites[0].up_bit_per_s = 90e6;
  const Plan plan = Planned(request);
  EXPECT_EQ(plan.up.codec, v1::LM2);
  EXPECT_TRUE(plan.reaches_target);
}

TEST(Planner, ASlowSiteIsWhatTheOthersWaitFor) {
  PlanRequest request = TenBillion(10e9);
  request.sites.push_back(request.sites[0]);
  request.sites[1].name = "old";
  request.sites[1].step_seconds = 1.6;
  const Plan plan = Planned(request);
  EXPECT_FALSE(plan.reaches_target);
  EXPECT_THAT(plan.binding, HasSubstr("the steps of old"));
}

TEST(Planner, ThinnerLinksOrLessMemoryThanItTakesWantMoreThanOneMachine) {
  PlanRequest request = TenBillion(100e9);
  request.values = 1e12;
  request.sites[0].step_seconds = 30;
  const Plan plan = Planned(request);
  EXPECT_EQ(plan.machines, 1);  // Of 12 TB of state, two fragments are in memory.
  EXPECT_NEAR(plan.coordinator_bit_per_s, 2 * plan.needed_bit_per_s[0], 1e9);
  request.coordinator_memory_bytes = plan.coordinator_memory_bytes / 2;
  EXPECT_EQ(Planned(request).machines, 3);
  request.coordinator_memory_bytes = 256e9;
  request.coordinator_bit_per_s = plan.coordinator_bit_per_s;
  EXPECT_EQ(Planned(request).machines, 2);
}

TEST(Planner, LongerWaysWantMoreConnections) {
  PlanRequest request = TenBillion(1e9);
  EXPECT_EQ(Planned(request).connections[0], 6);
  request.sites[0].one_way_seconds = 0.15;
  EXPECT_EQ(Planned(request).connections[0], 18);
}

TEST(Planner, SlackIsForTheCoordinatorsDeathUnlessSomethingElseIsNamed) {
  PlanRequest request = TenBillion(1e9);
  const Plan alone = Planned(request);
  EXPECT_EQ(alone.slack.disturbances.outages.length.mean, alone.recovery_seconds);
  // 292 s at 0.8 s per step are more than H.
  EXPECT_EQ(alone.slack.max_overlap_steps, alone.steps_between_syncs - 1);
  EXPECT_GT(alone.slack.needed_steps, 290 / 0.8);
  request.disturbances.outages = {.length = {.mean = 20}, .every = {.mean = 3600}};
  const Plan asked = Planned(request);
  EXPECT_EQ(asked.steps_between_syncs, alone.steps_between_syncs);
  EXPECT_EQ(asked.slack.max_overlap_steps, asked.overlap_steps + asked.slack.needed_steps);
  EXPECT_LT(asked.slack.max_overlap_steps, asked.slack.most_overlap_steps);
  // So long as the outage and the way back, and what waits for the link then.
  EXPECT_GE(asked.slack.max_overlap_steps, 24 / 0.8);
  EXPECT_GT(asked.slack.with.utilization, 0.999);
  EXPECT_NEAR(asked.slack.without.utilization, 1 - 24.0 / 3600, 0.002);
}

TEST(Planner, LinksThatJitterAreCountedAtTheirMean) {
  PlanRequest request = TenBillion(1e9);
  EXPECT_EQ(Planned(request).steps_between_syncs, 100);
  request.disturbances = {.least_rate = 0.2, .most_rate = 0.8};
  const Plan plan = Planned(request);
  EXPECT_EQ(plan.steps_between_syncs, 200);
  EXPECT_GT(plan.slack.with.utilization, 0.99);
}

TEST(Planner, SlackLeavesPacesTheirSteps) {
  PlanRequest request = TenBillion(10e9);
  request.sites.push_back(request.sites[0]);
  request.sites[1].step_seconds = 2;
  request.sites[1].pace = 2.5;
  const Plan plan = Planned(request);
  EXPECT_EQ(plan.slack.most_overlap_steps, plan.steps_between_syncs - 3);
}

TEST(Planner, RequestsThatMakeNoSenseAreRefused) {
  PlanRequest request = TenBillion(1e9);
  request.uplinks.clear();
  EXPECT_THAT(std::string(MakePlan(request).status().message()), HasSubstr("codec"));
  request = TenBillion(1e9);
  request.link_efficiency = 0;
  EXPECT_THAT(std::string(MakePlan(request).status().message()), HasSubstr("efficiency"));
  request = TenBillion(1e9);
  request.target = 1;
  EXPECT_THAT(std::string(MakePlan(request).status().message()), HasSubstr("below 1"));
  request = TenBillion(1e9);
  request.values = 0;
  EXPECT_THAT(std::string(MakePlan(request).status().message()), HasSubstr("parameters"));
}

}  // namespace
}  // namespace causeway::server
