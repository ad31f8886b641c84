#include "server/store/inspect.h"

#include "common/params/draws.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

v1::Contribution Record(int fragment, int64_t round, const std::string& worker,
                        const Draws& draws) {
  v1::Contribution record;
  v1::PushHeader& header = *record.mutable_header();
  header.set_fragment(fragment);
  header.set_round(round);
  header.set_worker_id(worker);
  DrawsToProto(draws, header.mutable_draws());
  return record;
}

TEST(DrawReport, FragmentsThatSawTheSameWindowsCountThemOnce) {
  const nlohmann::json report =
      ReportDraws({Record(0, 1, "a", {{0, 0, 8}}), Record(0, 2, "a", {{0, 8, 16}}),
                   Record(1, 1, "a", {{0, 0, 12}}), Record(0, 1, "b", {{1, 0, 8}})});
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0]["data_slot"], 0);
  EXPECT_TRUE(report[0]["worker_id"].is_null());
  EXPECT_EQ(report[0]["next_draw"], 16);
  EXPECT_EQ(report[0]["skipped"], 0);
  EXPECT_EQ(report[0]["repeated"], 0);
  ASSERT_EQ(report[0]["trained_by"].size(), 1u);
  EXPECT_EQ(report[0]["trained_by"][0]["worker_id"], "a");
  EXPECT_EQ(report[0]["trained_by"][0]["draws"], "0:0-16");
  EXPECT_EQ(report[0]["trained_by"][0]["count"], 16);
}

TEST(DrawReport, WhatIsTakenOverRepeatedOrSkippedIsSaid) {
  const nlohmann::json report =
      ReportDraws({Record(0, 1, "a", {{0, 0, 8}}), Record(0, 2, "b", {{0, 6, 10}, {0, 12, 16}})});
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0]["trained_by"].size(), 2u);
  EXPECT_EQ(report[0]["trained_by"][1]["draws"], "0:6-10 0:12-16");
  EXPECT_EQ(report[0]["repeated"], 2);
  EXPECT_EQ(report[0]["skipped"], 2);
  EXPECT_EQ(report[0]["next_draw"], 16);
}

TEST(DrawReport, EachSitesOwnDataAreAPartForThemselves) {
  const nlohmann::json report =
      ReportDraws({Record(0, 1, "a", {{kOwnData, 0, 8}}), Record(0, 1, "b", {{kOwnData, 0, 8}})});
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0]["worker_id"], "a");
  EXPECT_EQ(report[1]["worker_id"], "b");
  EXPECT_EQ(report[1]["repeated"], 0);
}

}  // namespace
}  // namespace causeway::server
