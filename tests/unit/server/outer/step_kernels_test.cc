#include "server/outer/step_kernels.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace causeway::server {
namespace {

// Runs a test body on every instruction set that this machine and this build have.
template <typename Body>
void OnEveryTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

constexpr size_t kLength = 100;  // Whole vectors of any width, and a rest.

// Magnitudes over the whole range of a float, so that sums round in every way.
double Value(uint64_t stream, size_t i) {
  return std::exp2(60 * (RandomUniform(1, stream, i) - 0.5)) * RandomNormal(2, stream, i);
}

std::vector<float> Floats(uint64_t stream) {
  std::vector<float> values(kLength);
  for (size_t i = 0; i < kLength; ++i) values[i] = static_cast<float>(Value(stream, i));
  return values;
}

std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

TEST(StepKernels, AreTheFormulaBitForBitOnEveryTargetLengthAndAlignment) {
  constexpr double kLearningRate = 0.7;
  constexpr double kMomentum = 0.9;
  std::vector<double> g(kLength);
  for (size_t i = 0; i < kLength; ++i) g[i] = Value(3, i);
  const std::vector<float> theta = Floats(4);
  const std::vector<float> momentum = Floats(5);
  for (size_t begin = 0; begin < 5; ++begin) {
    for (const size_t size : {0, 1, 2, 3, 7, 15, 16, 17, 31, 64, 95}) {
      std::vector<float> stepped = theta;
      std::vector<float> plain = theta;
      std::vector<float> buffer = momentum;
      for (size_t i = begin; i < begin + size; ++i) {
        buffer[i] = static_cast<float>(kMomentum * static_cast<double>(buffer[i]) + g[i]);
        const double direction = g[i] + kMomentum * static_cast<double>(buffer[i]);
        stepped[i] = static_cast<float>(static_cast<double>(theta[i]) - kLearningRate * direction);
        plain[i] = static_cast<float>(static_cast<double>(theta[i]) - kLearningRate * g[i]);
      }
      OnEveryTarget([&] {
        const auto part = [&](auto& array) { return std::span(array).subspan(begin, size); };
        std::vector<float> nesterov = theta;
        std::vector<float> nesterov_buffer = momentum;
        NesterovStep(kLearningRate, kMomentum, part(g), part(nesterov), part(nesterov_buffer));
        EXPECT_EQ(Bits(nesterov), Bits(stepped));
        EXPECT_EQ(Bits(nesterov_buffer), Bits(buffer));
        std::vector<float> sgd = theta;
        SgdStep(kLearningRate, part(g), part(sgd));
        EXPECT_EQ(Bits(sgd), Bits(plain));
      });
    }
  }
}

TEST(StepKernels, FindOneValueThatIsNotFiniteAnywhere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values = Floats(6);
  values[3] = std::numeric_limits<float>::max();
  values[4] = -std::numeric_limits<float>::max();
  OnEveryTarget([&] {
    EXPECT_TRUE(AllFinite(values));
    EXPECT_TRUE(AllFinite({}));
    for (size_t i = 0; i < kLength; ++i) {
      for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
        std::vector<float> with_one = values;
        with_one[i] = bad;
        EXPECT_FALSE(AllFinite(with_one)) << bad << " at " << i;
      }
    }
  });
}

}  // namespace
}  // namespace causeway::server
