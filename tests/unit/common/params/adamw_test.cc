#include <cmath>

#include "common/params/adamw.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

// The update as the paper's algorithm 2 writes it, with its explicit bias corrections.
TEST(AdamW, FollowsTheDefinitionOverManySteps) {
  double weight = 0.7, m = 0, v = 0;
  double expected = 0.7, first = 0, second = 0;
  for (int64_t step = 1; step <= 200; ++step) {
    const double gradient = std::sin(static_cast<double>(step)) + 0.1 * weight;
    const double rate = 0.01 / static_cast<double>(step);
    AdamWStep<double>(rate, 0.9, 0.99, 1e-8, step).Apply(gradient, 0.1, weight, m, v);
    first = 0.9 * first + 0.1 * gradient;
    second = 0.99 * second + 0.01 * gradient * gradient;
    const auto t = static_cast<double>(step);
    const double m_hat = first / (1 - std::pow(0.9, t));
    const double v_hat = second / (1 - std::pow(0.99, t));
    expected -= rate * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * expected);
    ASSERT_NEAR(weight, expected, 1e-5 * std::abs(expected)) << step;
    ASSERT_NEAR(m, first, 1e-12) << step;
    ASSERT_NEAR(v, second, 1e-12) << step;
  }
}

TEST(AdamW, ZeroGradientWithoutDecayMovesNothing) {
  float weight = 1.5F, m = 0, v = 0;
  AdamWStep<float>(0.1, 0.9, 0.99, 1e-8, 1).Apply(0, 0, weight, m, v);
  EXPECT_EQ(weight, 1.5F);
}

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

TEST(LearningRateFactor, TheEdgesAreDefined) {
  EXPECT_DOUBLE_EQ(LearningRateFactor(1, 1, 0, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(1, 1, 1, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(10, 10, 10, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateFactor(7, 10, 0, 1.0), 1.0);
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

}  // namespace
}  // namespace causeway
