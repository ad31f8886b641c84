#include "common/params/adamw.h"

#include "gtest/gtest.h"

namespace causeway {
namespace {

TEST(LearningRateFactor, RisesLinearlyThenFollowsHalfACosine) {
  EXPECT_DOUBLE_EQ(LearningRateFactor(1, 110, 10, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(5, 110, 10, 0.1), 0.5);
  EXPECT_DOUBLE_EQ(LearningRateFactor(10, 110, 10, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(60, 110, 10, 0.1), 0.55);
  EXPECT_DOUBLE_EQ(LearningRateFactor(110, 110, 10, 0.1), 0.1);
}

TEST(LearningRateFactor, StaysAtItsEndAndNeverJumps) {
  EXPECT_DOUBLE_EQ(LearningRateFactor(500, 110, 10, 0.1), 0.1);
  double last = 0;
  for (int64_t step = 1; step <= 110; ++step) {
    const double factor = LearningRateFactor(step, 110, 10, 0.1);
    EXPECT_LE(std::abs(factor - last), 0.1 + 1e-12) << step;
    EXPECT_EQ(factor > last, step <= 10) << step;
    last = factor;
  }
}

TEST(LearningRateFactor, IsConstantForItsPartThenFallsInALine) {
  EXPECT_DOUBLE_EQ(LearningRateFactor(5, 100, 10, 0.1, 0.8), 0.5);
  EXPECT_DOUBLE_EQ(LearningRateFactor(10, 100, 10, 0.1, 0.8), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(80, 100, 10, 0.1, 0.8), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(90, 100, 10, 0.1, 0.8), 0.55);
  EXPECT_DOUBLE_EQ(LearningRateFactor(100, 100, 10, 0.1, 0.8), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(500, 100, 10, 0.1, 0.8), 0.1);
  // A warm-up that is longer than the constant part is not cut.
  EXPECT_DOUBLE_EQ(LearningRateFactor(20, 100, 20, 0.0, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(60, 100, 20, 0.0, 0.1), 0.5);
  EXPECT_DOUBLE_EQ(LearningRateFactor(100, 100, 10, 0.1, 1.0), 1.0);
}

TEST(LearningRateFactor, TheEdgesAreDefined) {
  EXPECT_DOUBLE_EQ(LearningRateFactor(1, 1, 0, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(1, 1, 1, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(10, 10, 10, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(7, 10, 0, 1.0), 1.0);
}

}  // namespace
}  // namespace causeway
