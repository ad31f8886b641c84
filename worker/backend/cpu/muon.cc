#include "worker/backend/cpu/muon.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "worker/backend/cpu/gemm.h"
#include "worker/backend/cpu/sum_of_squares.h"

namespace causeway::worker {
namespace {

constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;
constexpr double kNormEpsilon = 1e-7;

}  // namespace

int64_t MuonScratchSize(int64_t rows, int64_t cols) {
  const int64_t side = std::min(rows, cols);
  // The update, the next X, A and the polynomial in A.
  return 2 * rows * cols + 2 * side * side;
}

template <typename T>
void Orthogonalize(int64_t rows, int64_t cols, T* x, std::span<T> scratch) {
  const bool tall = rows > cols;
  const int64_t side = std::min(rows, cols);
  const int64_t size = rows * cols;
  T* const next = scratch.data();
  T* const gram = next + size;
  T* const polynomial = gram + side * side;

  const double norm = std::sqrt(SumOfSquares(std::span<const T>(x, static_cast<size_t>(size))));
  const T scale = static_cast<T>(1.0 / (norm + kNormEpsilon));
  for (int64_t i = 0; i < size; ++i) x[i] *= scale;

  T* from = x;
  T* to = next;
  for (int iteration = 0; iteration < kNewtonSchulzIterations; ++iteration) {
    Gemm<T>(nullptr, tall, !tall, side, side, tall ? rows : cols, T{1}, from, cols, from, cols,
            T{0}, gram, side);
    // a I + b A + c A^2, so that one product gives the next X.
    std::copy_n(gram, side * side, polynomial);
    Gemm<T>(nullptr, false, false, side, side, side, static_cast<T>(kC), gram, side, gram, side,
            static_cast<T>(kB), polynomial, side);
    for (int64_t i = 0; i < side; ++i) polynomial[i * side + i] += static_cast<T>(kA);
    if (tall) {
      Gemm<T>(nullptr, false, false, rows, cols, cols, T{1}, from, cols, polynomial, side, T{0}, to,
              cols);
    } else {
      Gemm<T>(nullptr, false, false, rows, cols, rows, T{1}, polynomial, side, from, cols, T{0}, to,
              cols);
    }
    std::swap(from, to);
  }
  if (from != x) std::copy_n(from, size, x);
}

template <typename T>
void MuonStep<T>::Apply(int64_t rows, int64_t cols, const T* gradient, T* weight, T* moment,
                        std::span<T> scratch) const {
  const int64_t size = rows * cols;
  T* const update = scratch.data();
  for (int64_t i = 0; i < size; ++i) {
    const T g = gradient[i] * gradient_factor;
    moment[i] = momentum * moment[i] + g;
    update[i] = g + momentum * moment[i];
  }
  Orthogonalize<T>(rows, cols, update, scratch.subspan(static_cast<size_t>(size)));
  const double shape =
      std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
  const T step_size = static_cast<T>(static_cast<double>(learning_rate) * shape);
  const T decay = learning_rate * weight_decay;
  for (int64_t i = 0; i < size; ++i) {
    weight[i] -= decay * weight[i];
    weight[i] -= step_size * update[i];
  }
}

template void Orthogonalize(int64_t, int64_t, float*, std::span<float>);
template void Orthogonalize(int64_t, int64_t, double*, std::span<double>);
template struct MuonStep<float>;
template struct MuonStep<double>;

}  // namespace causeway::worker
