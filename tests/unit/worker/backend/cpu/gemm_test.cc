#include "worker/backend/cpu/kernels.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

template <typename T>
std::vector<T> RandomValues(int64_t size, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> values(static_cast<size_t>(size));
  for (T& value : values) value = static_cast<T>(uniform(engine));
  return values;
}

template <typename T>
class GemmTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(GemmTest, Types);

TYPED_TEST(GemmTest, MatchesTheDefinitionForAllTransposesStridesAndFactors) {
  using T = TypeParam;
  constexpr int64_t kPadding = 5;
  ThreadPool pool(2);
  struct Shape {
    int64_t m, n, k;
  };
  for (const Shape shape : {Shape{1, 1, 1}, {1, 50, 7}, {33, 1, 12}, {64, 48, 96}, {67, 101, 53}}) {
    const auto [m, n, k] = shape;
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const T beta : {T{0}, T{1}, T{-0.5}}) {
          const T alpha = T{0.75};
          const int64_t lda = (ta ? m : k) + kPadding;
          const int64_t ldb = (tb ? k : n) + kPadding;
          const int64_t ldc = n + kPadding;
          const auto a = RandomValues<T>((ta ? k : m) * lda, 1);
          const auto b = RandomValues<T>((tb ? n : k) * ldb, 2);
          auto c = RandomValues<T>(m * ldc, 3);
          const auto before = c;
          if (beta == 0) {
            // Never read: not even NaN may come through.
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) c[static_cast<size_t>(i * ldc + j)] = T(NAN);
            }
          }
          Gemm<T>(&pool, ta, tb, m, n, k, alpha, a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < ldc; ++j) {
              const auto at = static_cast<size_t>(i * ldc + j);
              if (j >= n) {
                ASSERT_EQ(c[at], before[at]) << "the padding of row " << i << " was written";
                continue;
              }
              double expected = beta == 0 ? 0.0 : static_cast<double>(beta * before[at]);
              for (int64_t l = 0; l < k; ++l) {
                const T left = a[static_cast<size_t>(ta ? l * lda + i : i * lda + l)];
                const T right = b[static_cast<size_t>(tb ? j * ldb + l : l * ldb + j)];
                expected += static_cast<double>(alpha) * static_cast<double>(left) *
                            static_cast<double>(right);
              }
              ASSERT_NEAR(static_cast<double>(c[at]), expected, sizeof(T) == 4 ? 2e-5 : 1e-13)
                  << m << "x" << n << "x" << k << " at " << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

// Weight gradients of wide layers: A is copied panel by panel, over several panels and tiles.
TYPED_TEST(GemmTest, TransposedOperandWithLongRowsMatchesTheDefinition) {
  using T = TypeParam;
  constexpr int64_t kM = 1030, kN = 17, kK = 1100;
  const auto a = RandomValues<T>(kK * kM, 1);
  const auto b = RandomValues<T>(kK * kN, 2);
  for (const T beta : {T{0}, T{1}}) {
    auto c = RandomValues<T>(kM * kN, 3);
    std::vector<double> expected(c.begin(), c.end());
    for (double& value : expected) value *= static_cast<double>(beta);
    for (int64_t l = 0; l < kK; ++l) {
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t j = 0; j < kN; ++j) {
          expected[static_cast<size_t>(i * kN + j)] +=
              static_cast<double>(a[static_cast<size_t>(l * kM + i)]) *
              static_cast<double>(b[static_cast<size_t>(l * kN + j)]);
        }
      }
    }
    ThreadPool pool(2);
    Gemm<T>(&pool, true, false, kM, kN, kK, T{1}, a.data(), kM, b.data(), kN, beta, c.data(), kN);
    for (size_t i = 0; i < c.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(c[i]), expected[i], sizeof(T) == 4 ? 2e-4 : 1e-12) << i;
    }
  }
}

TYPED_TEST(GemmTest, HasTheSameBitsWithoutAPoolAndOnAnyNumberOfThreads) {
  using T = TypeParam;
  // Several tiles in both directions.
  constexpr int64_t kM = 1100, kN = 900, kK = 40;
  const auto a = RandomValues<T>(kM * kK, 1);
  const auto b = RandomValues<T>(kK * kN, 2);
  std::vector<T> expected(static_cast<size_t>(kM * kN));
  Gemm<T>(nullptr, false, false, kM, kN, kK, T{1}, a.data(), kK, b.data(), kN, T{0},
          expected.data(), kN);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    std::vector<T> c(expected.size());
    Gemm<T>(&pool, false, false, kM, kN, kK, T{1}, a.data(), kK, b.data(), kN, T{0}, c.data(), kN);
    EXPECT_EQ(c, expected) << threads << " threads";
  }
}

}  // namespace
}  // namespace causeway::worker
