#include "worker/backend/cpu/optimizer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/params/adamw.h"
#include "worker/backend/cpu/kernels.h"

namespace causeway::worker {
namespace {

// Values that one task updates or sums. The norm's bits depend on it.
constexpr int64_t kUpdatedValues = 32 * 1024;

}  // namespace

template <typename T>
InnerOptimizer<T>::InnerOptimizer(const FragmentPlan& plan, const v1::TrainConfig& train,
                                  ThreadPool* pool)
    : train_(train),
      pool_(pool),
      partial_sums_(static_cast<size_t>((plan.arena_size() + kUpdatedValues - 1) / kUpdatedValues)),
      m_(static_cast<size_t>(plan.arena_size())),
      v_(static_cast<size_t>(plan.arena_size())) {
  for (const PlacedTensor& tensor : plan.tensors()) {
    const TensorInfo& info = tensor.info;
    if (train.optimizer() == v1::TrainConfig::MUON && info.role == TensorRole::kMatrix) {
      muon_.push_back({tensor.offset, info.rows, info.cols});
      continue;
    }
    for (int64_t at = 0; at < info.size(); at += kUpdatedValues) {
      adamw_.push_back(
          {tensor.offset + at, std::min(kUpdatedValues, info.size() - at), info.decays()});
    }
  }
  std::stable_sort(muon_.begin(), muon_.end(), [](const Matrix& a, const Matrix& b) {
    return a.rows * a.cols > b.rows * b.cols;
  });
}

template <typename T>
double InnerOptimizer<T>::GradientNorm(std::span<const T> gradients) {
  pool_->ParallelFor(static_cast<int64_t>(partial_sums_.size()), [&](int64_t task) {
    const auto begin = static_cast<size_t>(task * kUpdatedValues);
    const size_t size = std::min(static_cast<size_t>(kUpdatedValues), gradients.size() - begin);
    partial_sums_[static_cast<size_t>(task)] = SumOfSquares(gradients.subspan(begin, size));
  });
  double sum = 0;
  for (const double partial : partial_sums_) sum += partial;
  return std::sqrt(sum);
}

template <typename T>
absl::StatusOr<OptimizerReport> InnerOptimizer<T>::Step(int64_t step, std::span<T> weights,
                                                        std::span<const T> gradients) {
  OptimizerReport report;
  report.gradient_norm = GradientNorm(gradients);
  if (!std::isfinite(report.gradient_norm)) {
    return absl::OutOfRangeError(absl::StrCat(
        "the gradient of step ", step, " is not finite (its norm is ", report.gradient_norm,
        "); lower train.learning_rate, or go back to a checkpoint"));
  }
  report.clipped = train_.clip_norm() > 0 && report.gradient_norm > train_.clip_norm();
  const T gradient_factor =
      report.clipped ? static_cast<T>(train_.clip_norm() / report.gradient_norm) : T{1};
  const double schedule =
      LearningRateFactor(step, train_.steps(), train_.warmup_steps(),
                         train_.final_learning_rate_fraction(), train_.constant_fraction());
  report.learning_rate = train_.learning_rate() * schedule;
  ++updates_;

  const AdamWStep<T> adamw(report.learning_rate, train_.beta1(), train_.beta2(), train_.epsilon(),
                           updates_);
  const MuonStep<T> muon = {
      .momentum = static_cast<T>(train_.muon_momentum()),
      .learning_rate = static_cast<T>(train_.muon_learning_rate() * schedule),
      .weight_decay = static_cast<T>(train_.weight_decay()),
      .gradient_factor = gradient_factor,
  };
  const Kernels<T>& kernels = GetKernels<T>();
  const auto matrices = static_cast<int64_t>(muon_.size());
  const auto slices = static_cast<int64_t>(adamw_.size());
  pool_->ParallelFor(matrices + slices, [&](int64_t task) {
    if (task < matrices) {
      const Matrix& matrix = muon_[static_cast<size_t>(task)];
      muon.Apply(matrix.rows, matrix.cols, gradients.data() + matrix.begin,
                 weights.data() + matrix.begin, m_.data() + matrix.begin,
                 ThreadScratch<T>(MuonScratchSize(matrix.rows, matrix.cols)));
      return;
    }
    const Slice& slice = adamw_[static_cast<size_t>(task - matrices)];
    const T weight_decay = slice.decays ? static_cast<T>(train_.weight_decay()) : T{0};
    kernels.adamw(adamw, weight_decay, gradient_factor, gradients.data() + slice.begin, slice.size,
                  weights.data() + slice.begin, m_.data() + slice.begin, v_.data() + slice.begin);
  });
  return report;
}

template class InnerOptimizer<float>;
template class InnerOptimizer<double>;

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
