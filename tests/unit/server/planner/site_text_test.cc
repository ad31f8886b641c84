#include "server/planner/site_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/planner/need.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

TEST(SiteText, RatesHaveUnits) {
  EXPECT_EQ(*ParseRate("500kbit"), 5e5);
  EXPECT_EQ(*ParseRate("2.5gbit"), 2.5e9);
  EXPECT_EQ(*ParseRate("1tbit"), 1e12);
  EXPECT_EQ(*ParseRate("unlimited"), kUnlimited);
  for (const char* wrong : {"", "gbit", "10", "-1mbit", "0mbit", "1 MB", "infgbit", "nanmbit"}) {
    EXPECT_THAT(std::string(ParseRate(wrong).status().message()), HasSubstr("as in 400mbit"))
        << wrong;
  }
  EXPECT_EQ(RateText(4e8), "400 Mbit/s");
  EXPECT_EQ(RateText(1.25e9), "1.25 Gbit/s");
  EXPECT_EQ(RateText(999.9e6), "1 Gbit/s");
  EXPECT_EQ(RateText(12), "12 bit/s");
  EXPECT_EQ(RateText(kUnlimited), "unlimited");
}

TEST(SiteText, SitesHaveCountsTwoRatesAndSteps) {
  const auto sites = ParseSites("1gbit,3x400mbit@1600ms,1gbit/200mbit",
                                {.step_seconds = 0.8, .one_way_seconds = 0.05}, /*max_pace=*/0);
  ASSERT_TRUE(sites.ok()) << sites.status();
  ASSERT_EQ(sites->size(), 3U);
  EXPECT_EQ((*sites)[0].count, 1);
  EXPECT_EQ((*sites)[0].step_seconds, 0.8);
  EXPECT_EQ((*sites)[0].one_way_seconds, 0.05);
  EXPECT_EQ((*sites)[1].count, 3);
  EXPECT_EQ((*sites)[1].step_seconds, 1.6);
  EXPECT_EQ((*sites)[1].pace, 1);
  EXPECT_EQ((*sites)[2].up_bit_per_s, 1e9);
  EXPECT_EQ((*sites)[2].down_bit_per_s, 2e8);
}

TEST(SiteText, SlowSitesGetAPaceIfTheyMay) {
  const auto sites = ParseSites("1gbit,1gbit@3s,1gbit@9s", {.step_seconds = 1}, /*max_pace=*/4);
  ASSERT_TRUE(sites.ok());
  EXPECT_EQ((*sites)[0].pace, 1);
  EXPECT_EQ((*sites)[1].pace, 3);
  EXPECT_EQ((*sites)[2].pace, 4);
}

TEST(SiteText, WhatIsNoSiteIsNamed) {
  for (const char* wrong :
       {"fast", "1gbit,", "0x1gbit", "x1gbit", "1gbit@", "1gbit@0s", "1gbit/", "1gbit/x", "2x"}) {
    EXPECT_THAT(std::string(ParseSites(wrong, {}, 0).status().message()), HasSubstr("is no site"))
        << wrong;
  }
}

TEST(SiteText, TiersHaveCountsRatesAndRoundTrips) {
  const absl::StatusOr<std::vector<StarTier>> tiers =
      ParseTiers("32x800mbit@100ms,4x1gbit/200mbit", /*one_way_seconds=*/0.02);
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  ASSERT_EQ(tiers->size(), 2U);
  EXPECT_EQ((*tiers)[0].count, 32);
  EXPECT_EQ((*tiers)[0].up_bit_per_s, 800e6);
  EXPECT_EQ((*tiers)[0].one_way_seconds, 0.05);
  EXPECT_EQ((*tiers)[1].down_bit_per_s, 200e6);
  EXPECT_EQ((*tiers)[1].one_way_seconds, 0.02);
  EXPECT_TRUE(ParseTiers("", 0)->empty());
  for (const char* text : {"800mbit", "0x1gbit", "4x1gbit@fast", "4x"}) {
    EXPECT_THAT(std::string(ParseTiers(text, 0).status().message()),
                HasSubstr("is no tier: expected COUNTxRATE"))
        << text;
  }
}

TEST(Need, IsTheBoundWhereLatencyAndLumpsDoNotMatter) {
  StarSetting setting = OwnSetting(10e9, 0.8);
  setting.overlap_steps = 40;
  setting.steps = 2000;
  const absl::StatusOr<double> need = NeededRate(setting, 0.99);
  ASSERT_TRUE(need.ok()) << need.status();
  const double bound = ThroughputBound(10e9, 4.25, 100, 0.8);
  EXPECT_NEAR(*need / bound, 0.99, 0.02);
}

TEST(Need, IsUnavailableWhereNoLinkHelps) {
  StarSetting setting = OwnSetting(1e9, 0.1);
  setting.overlap_steps = 1;  // One step of 100 ms for a way there and back of 200 ms.
  const absl::Status status = NeededRate(setting, 0.99).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("latency"));
}

TEST(Need, OurScheduleIsWithinAQuarterOfTheBound) {
  const absl::StatusOr<std::vector<OwnRow>> rows = OwnTable();
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 3U);
  EXPECT_NEAR((*rows)[0].bound_bit_per_s, 0.4e9, 1);
  EXPECT_NEAR((*rows)[1].bound_bit_per_s, 0.5e9, 1);
  EXPECT_NEAR((*rows)[2].bound_bit_per_s, 0.816e9, 1e6);
  for (const OwnRow& row : *rows) {
    EXPECT_LT(row.needed_bit_per_s, 1.25 * row.bound_bit_per_s) << row.model;
    EXPECT_LT(row.needed_bit_per_s, row.paper_bit_per_s) << row.model;
  }
}

}  // namespace
}  // namespace causeway::server
