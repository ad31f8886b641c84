#include "server/planner/paper_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/planner/paper_tables.h"

namespace causeway::server {
namespace {

TEST(PaperModel, ASlowLinkLeavesDataParallelismTheShareThatItsBitsTake) {
  PaperSetting setting = {.params = 1e9, .layers = 24, .step_seconds = 0.1};
  setting.method = PaperMethod::kDataParallel;
  // 16 Gbit at 0.001 Gbit/s are 16,000 s for 0.1 s of computing.
  EXPECT_NEAR(PaperUtilization(setting, 0.001), 0.1 / 16000, 1e-8);
}

TEST(PaperModel, AnEndlessLinkLeavesNothingToWaitFor) {
  for (const PaperMethod method :
       {PaperMethod::kDataParallel, PaperMethod::kDiLoCo, PaperMethod::kStreaming}) {
    PaperSetting setting = {.params = 1e9, .layers = 24, .step_seconds = 0.1};
    setting.method = method;
    EXPECT_NEAR(PaperUtilization(setting, 1e9), 1, 1e-6);
  }
}

TEST(PaperModel, OneLayerWaitsForItsWholeReduction) {
  const PaperSetting setting = {.params = 1e9,
                                .layers = 1,
                                .step_seconds = 1,
                                .bits = 1,
                                .method = PaperMethod::kDataParallel};
  // Nothing overlaps with one layer: a step of 1 s, then 1 Gbit at 1 Gbit/s.
  EXPECT_NEAR(PaperUtilization(setting, 1), 0.5, 1e-12);
}

TEST(PaperModel, DiLoCoSyncsOncePerHSteps) {
  const PaperSetting setting = {.params = 1e9,
                                .layers = 1,
                                .step_seconds = 1,
                                .bits = 1,
                                .method = PaperMethod::kDiLoCo,
                                .steps_between_syncs = 50,
                                .layers_per_fragment = 1};
  EXPECT_NEAR(PaperUtilization(setting, 0.1), 50.0 / 60, 1e-12);
}

TEST(PaperModel, OverlapHidesWhatFitsIntoIt) {
  PaperSetting setting = {.params = 3e9,
                          .layers = 3,
                          .step_seconds = 1,
                          .bits = 1,
                          .method = PaperMethod::kStreaming,
                          .steps_between_syncs = 100,
                          .layers_per_fragment = 1,
                          .overlap_steps = 3};
  // 1 Gbit per fragment at 0.4 Gbit/s is 2.5 s: less than three steps.
  // Only the last one, sent at the end, is waited for.
  EXPECT_NEAR(PaperUtilization(setting, 0.4), 201 / 203.5, 1e-9);
  setting.overlap_steps = 1;
  EXPECT_LT(PaperUtilization(setting, 0.4), 201 / 206.0);
}

TEST(PaperModel, PrintsAsThePaperDoes) {
  const std::vector<double> grid = PaperBandwidths();
  ASSERT_EQ(grid.size(), 50U);
  EXPECT_DOUBLE_EQ(grid.front(), 0.1);
  EXPECT_DOUBLE_EQ(grid.back(), 1000);
  EXPECT_EQ(PaperPrinted(grid[12]), "0.9");    // 0.954
  EXPECT_EQ(PaperPrinted(grid[13]), "1.1");    // 1.151
  EXPECT_EQ(PaperPrinted(grid[18]), "3.0");    // 2.947
  EXPECT_EQ(PaperPrinted(grid[36]), "86.8");   // 86.851
  EXPECT_EQ(PaperPrinted(grid[43]), "323.8");  // 323.746
}

TEST(PaperModel, TheLargestPointBelowTheTargetCounts) {
  EXPECT_EQ(PaperGridPoint({0.1, 0.5, 0.9, 0.85, 0.95}, 0.9), 3);
  EXPECT_EQ(PaperGridPoint({0.6, 0.7}, 0.5), 0);
}

TEST(PaperTables, SeventyOfTheSeventyFiveCellsAreThePapers) {
  const PaperComparison comparison = ComparePaperBandwidths();
  EXPECT_EQ(comparison.cells, 75);
  EXPECT_GE(comparison.cells_exact, 70);
  EXPECT_EQ(comparison.cells_within_one, 75);
}

TEST(PaperTables, TheHoursAtOneGigabitAreWithinThreePercent) {
  const std::vector<PaperHours> hours = ComparePaperHours();
  ASSERT_EQ(hours.size(), 6U);
  for (const PaperHours& row : hours) {
    EXPECT_NEAR(row.our_hours / row.paper_hours, 1, 0.03)
        << row.method << " " << row.tokens_billions;
  }
}

}  // namespace
}  // namespace causeway::server
