#include "worker/backend/cpu/kernels.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

template <typename T>
class KernelsTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(KernelsTest, Types);

TYPED_TEST(KernelsTest, AdamWHasTheBitsOfTheScalarUpdateAtAnyLength) {
  using T = TypeParam;
  std::mt19937 engine(7);
  std::normal_distribution<double> normal;
  const auto fill = [&](std::vector<T>& values, double scale) {
    for (T& value : values) value = static_cast<T>(scale * normal(engine));
  };
  for (const size_t size : {1U, 15U, 16U, 64U, 129U}) {
    std::vector<T> weight(size), m(size), v(size), gradient(size);
    fill(weight, 1);
    fill(m, 0.1);
    auto scalar_weight = weight;
    auto scalar_m = m;
    auto scalar_v = v;
    for (int64_t step = 1; step <= 3; ++step) {
      fill(gradient, 0.01);
      const AdamWStep<T> adamw(1e-3, 0.9, 0.99, 1e-8, step);
      const T factor = static_cast<T>(0.37);
      for (size_t i = 0; i < size; ++i) {
        adamw.Apply(gradient[i] * factor, T{0.1F}, scalar_weight[i], scalar_m[i], scalar_v[i]);
      }
      GetKernels<T>().adamw(adamw, T{0.1F}, factor, gradient.data(), static_cast<int64_t>(size),
                            weight.data(), m.data(), v.data());
      ASSERT_EQ(weight, scalar_weight);
      ASSERT_EQ(m, scalar_m);
      ASSERT_EQ(v, scalar_v);
    }
  }
}

TYPED_TEST(KernelsTest, ActivationsStayFiniteAndExactFarFromZero) {
  using T = TypeParam;
  const std::vector<T> x = {-1000, -90, -20, -1, 0, 1, 20, 90, 1000};
  const auto size = static_cast<int64_t>(x.size());
  std::vector<T> hidden(x.size());
  GetKernels<T>().gelu(x.data(), 1, size, hidden.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto value = static_cast<double>(x[i]);
    const double u = std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value);
    EXPECT_NEAR(static_cast<double>(hidden[i]), 0.5 * value * (1 + std::tanh(u)), 1e-6) << value;
  }
  std::vector<T> gate_up(x);
  gate_up.resize(2 * x.size(), T{1});
  GetKernels<T>().swiglu(gate_up.data(), 1, size, hidden.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto value = static_cast<double>(x[i]);
    EXPECT_NEAR(static_cast<double>(hidden[i]), value / (1 + std::exp(-value)), 1e-5) << value;
  }
}

TYPED_TEST(KernelsTest, ClassifierSurvivesLargeLogits) {
  using T = TypeParam;
  std::vector<T> logits = {5000, 4990, -5000, 7};  // The last one is padding.
  const int32_t target = 1;
  T loss = 0;
  T log_sum_exp = 0;
  GetKernels<T>().classifier(logits.data(), &target, 1, 3, 4, T{1}, T{0}, true, &loss,
                             &log_sum_exp);
  EXPECT_NEAR(static_cast<double>(loss), 10, 1e-3);
  EXPECT_NEAR(static_cast<double>(logits[0]), 1, 1e-4);
  EXPECT_NEAR(static_cast<double>(logits[1]), -1, 1e-4);
  EXPECT_EQ(logits[2], T{0});
  EXPECT_EQ(logits[3], T{0});
}

}  // namespace
}  // namespace causeway::worker
