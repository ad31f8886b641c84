#include "server/outer/step_kernels.h"

#include "hwy/targets.h"
#include "tests/unit/server/outer/merge_fixture.h"

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

TEST(StepKernels, AdamIsTheFormulaBitForBitOnEveryTarget) {
  const AdamRates rates = {.learning_rate = 1e-3,
                           .beta1 = 0.9,
                           .beta2 = 0.99,
                           .epsilon = 1e-6,
                           .correction1 = 1 - std::pow(0.9, 3),
                           .correction2 = 1 - std::pow(0.99, 3)};
  std::vector<double> g(kLength);
  for (size_t i = 0; i < kLength; ++i) g[i] = Value(3, i);
  g[7] = 0;
  std::vector<float> theta = Floats(4);
  std::vector<float> m = Floats(5);
  std::vector<float> v = Floats(6);
  for (float& x : v) x = std::abs(x);
  m[7] = v[7] = 0;
  const std::vector<float> before[] = {theta, m, v};
  for (size_t i = 0; i < kLength; ++i) {
    m[i] = static_cast<float>(0.9 * static_cast<double>(m[i]) + (1 - 0.9) * g[i]);
    v[i] = static_cast<float>(0.99 * static_cast<double>(v[i]) + (1 - 0.99) * (g[i] * g[i]));
    const double mean = static_cast<double>(m[i]) / rates.correction1;
    const double square = static_cast<double>(v[i]) / rates.correction2;
    theta[i] = static_cast<float>(static_cast<double>(theta[i]) -
                                  1e-3 * (mean / (std::sqrt(square) + 1e-6)));
  }
  EXPECT_EQ(theta[7], before[0][7]);
  OnEveryTarget([&] {
    std::vector<float> found[] = {before[0], before[1], before[2]};
    AdamStep(rates, g, found[0], found[1], found[2]);
    EXPECT_EQ(Bits(found[0]), Bits(theta));
    EXPECT_EQ(Bits(found[1]), Bits(m));
    EXPECT_EQ(Bits(found[2]), Bits(v));
  });
}

TEST(StepKernels, SumOfSquaresHasOneOrderOnEveryTarget) {
  std::vector<double> x(kLength);
  for (size_t i = 0; i < kLength; ++i) x[i] = Value(8, i);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{8}, size_t{13}, size_t{64}, kLength}) {
    double s[8] = {};
    for (size_t i = 0; i < size; ++i) s[i % 8] += x[i] * x[i];
    const double expected = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    OnEveryTarget([&] { EXPECT_EQ(SumOfSquares(std::span(x).first(size)), expected); });
  }
  const std::vector<float> floats = Floats(8);
  const std::vector<double> same(floats.begin(), floats.end());
  const double expected = SumOfSquares(std::span(same));
  OnEveryTarget([&] { EXPECT_EQ(SumOfSquares(std::span(floats)), expected); });
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

// Few different values, so that many are equal.
TEST(StepKernels, TheTrimmedMeanIsTheFormulaBitForBitOnEveryTarget) {
  constexpr size_t kRows = 7;
  constexpr size_t kStride = 104;
  std::vector<double> weights(kRows);
  std::vector<double> values(kRows * kStride);
  for (size_t m = 0; m < kRows; ++m) weights[m] = RandomUniform(3, m, 0) + 0.1;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::round(3 * RandomNormal(4, 0, i)) * std::exp2(-20);
  }
  for (const size_t trim : {1, 2, 3}) {
    std::vector<double> expected(kLength);
    for (size_t i = 0; i < kLength; ++i) {
      std::vector<std::pair<double, size_t>> sorted;
      for (size_t m = 0; m < kRows; ++m) sorted.emplace_back(values[m * kStride + i], m);
      std::ranges::sort(sorted);
      double sum = 0;
      double weight = 0;
      for (size_t m = 0; m < kRows; ++m) {
        const std::pair<double, size_t> here{values[m * kStride + i], m};
        if (here < sorted[trim] || here > sorted[kRows - 1 - trim]) continue;
        sum += weights[m] * here.first;
        weight += weights[m];
      }
      expected[i] = sum / weight;
    }
    OnEveryTarget([&] {
      std::vector<double> mean(kLength);
      TrimmedMean(weights, trim, values, kStride, mean);
      EXPECT_EQ(mean, expected);
    });
  }
}

}  // namespace
}  // namespace causeway::server
