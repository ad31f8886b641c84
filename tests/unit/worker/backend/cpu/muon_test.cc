#include "worker/backend/cpu/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/random.h"

namespace causeway::worker {
namespace {

struct Shape {
  int64_t rows;
  int64_t cols;
};

std::vector<double> RandomMatrix(const Shape& shape, uint64_t seed) {
  std::vector<double> values(static_cast<size_t>(shape.rows * shape.cols));
  for (size_t i = 0; i < values.size(); ++i) values[i] = RandomNormal(seed, 1, i);
  return values;
}

// The definition, by plain loops on a transposed copy of tall matrices.
std::vector<double> ReferenceOrthogonalize(Shape shape, const std::vector<double>& input) {
  const bool tall = shape.rows > shape.cols;
  const auto r = static_cast<size_t>(std::min(shape.rows, shape.cols));
  const auto c = static_cast<size_t>(std::max(shape.rows, shape.cols));
  const auto columns = static_cast<size_t>(shape.cols);
  const auto at = [&](size_t i, size_t j) { return tall ? j * columns + i : i * columns + j; };
  double norm = 0;
  for (const double value : input) norm += value * value;
  norm = std::sqrt(norm) + 1e-7;
  std::vector<std::vector<double>> x(r, std::vector<double>(c));
  for (size_t i = 0; i < r; ++i) {
    for (size_t j = 0; j < c; ++j) x[i][j] = input[at(i, j)] / norm;
  }
  for (int iteration = 0; iteration < 5; ++iteration) {
    std::vector<std::vector<double>> a(r, std::vector<double>(r, 0.0));
    for (size_t i = 0; i < r; ++i) {
      for (size_t j = 0; j < r; ++j) {
        for (size_t k = 0; k < c; ++k) a[i][j] += x[i][k] * x[j][k];
      }
    }
    std::vector<std::vector<double>> b(r, std::vector<double>(r, 0.0));
    for (size_t i = 0; i < r; ++i) {
      for (size_t j = 0; j < r; ++j) {
        double square = 0;
        for (size_t k = 0; k < r; ++k) square += a[i][k] * a[k][j];
        b[i][j] = -4.7750 * a[i][j] + 2.0315 * square;
      }
    }
    std::vector<std::vector<double>> next = x;
    for (size_t i = 0; i < r; ++i) {
      for (size_t j = 0; j < c; ++j) {
        double product = 0;
        for (size_t k = 0; k < r; ++k) product += b[i][k] * x[k][j];
        next[i][j] = 3.4445 * x[i][j] + product;
      }
    }
    x = next;
  }
  std::vector<double> output(input.size());
  for (size_t i = 0; i < r; ++i) {
    for (size_t j = 0; j < c; ++j) output[at(i, j)] = x[i][j];
  }
  return output;
}

template <typename T>
std::vector<T> Orthogonalized(const Shape& shape, std::vector<T> x) {
  std::vector<T> scratch(static_cast<size_t>(MuonScratchSize(shape.rows, shape.cols)));
  Orthogonalize<T>(shape.rows, shape.cols, x.data(), scratch);
  return x;
}

class OrthogonalizeTest : public ::testing::TestWithParam<Shape> {};

TEST_P(OrthogonalizeTest, AgreesWithTheDefinition) {
  const std::vector<double> x = RandomMatrix(GetParam(), 7);
  const std::vector<double> expected = ReferenceOrthogonalize(GetParam(), x);
  const std::vector<double> found = Orthogonalized<double>(GetParam(), x);
  // Five steps of a map that stretches small differences by at most 3.4^5 = 480.
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-12) << i;
  const std::vector<float> in_float =
      Orthogonalized<float>(GetParam(), std::vector<float>(x.begin(), x.end()));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(in_float[i], expected[i], 1e-4) << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, OrthogonalizeTest,
                         ::testing::Values(Shape{24, 40}, Shape{40, 24}, Shape{32, 32}, Shape{1, 9},
                                           Shape{9, 1}, Shape{7, 129}, Shape{130, 64}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.rows) + "By" +
                                  std::to_string(shape.param.cols);
                         });

TEST(OrthogonalizeZeroTest, ZeroStaysZero) {
  const std::vector<float> zero(12, 0.0F);
  EXPECT_EQ(Orthogonalized<float>({3, 4}, zero), zero);
}

}  // namespace
}  // namespace causeway::worker
