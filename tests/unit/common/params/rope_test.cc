#include "common/params/tensor_table.h"

#include <cmath>
#include <numbers>

#include "gtest/gtest.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

std::vector<double> Frequencies(const std::string& model) {
  return RopeFrequencies(
      Completed("model { vocabulary_size: 10 layers: 1 width: 8 heads: 1 mlp_width: 8 " + model +
                " }")
          .model());
}

TEST(RopeFrequencies, FallGeometricallyFromOne) {
  const std::vector<double> frequencies = Frequencies("rope_theta: 10000");
  ASSERT_EQ(frequencies.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(frequencies[i], std::pow(10000.0, -static_cast<double>(i) / 4));
  }
}

TEST(RopeFrequencies, ScalingStretchesLongWavesKeepsShortOnesAndBlendsBetween) {
  // Wavelengths 2 pi times 1, 10, 100 and 1000, against bounds of 62.8 and 628.
  const std::vector<double> plain = Frequencies("rope_theta: 10000");
  const std::vector<double> scaled = Frequencies(
      "rope_theta: 10000 rope_scaling { factor: 8 low_frequency_factor: 1 "
      "high_frequency_factor: 4 original_positions: 1257 }");
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_EQ(scaled[1], plain[1]);
  const double turns = 1257 * plain[2] / (2 * std::numbers::pi);
  const double kept = (turns - 1) / 3;
  EXPECT_NEAR(scaled[2], plain[2] * (kept + (1 - kept) / 8), 1e-15);
  EXPECT_DOUBLE_EQ(scaled[3], plain[3] / 8);
}

TEST(RopeFrequencies, LearnedPositionsTurnNothing) {
  for (const double frequency : Frequencies("sequence_length: 4 learned_positions: 4")) {
    EXPECT_EQ(frequency, 0);
  }
}

}  // namespace
}  // namespace causeway
