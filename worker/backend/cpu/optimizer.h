// The inner optimizer: one training step's change of the weights, from the gradient. It works on
// arenas in the layout of the FragmentPlan, and its state never leaves the worker.
//
//   ADAMW  AdamW (common/params/adamw.h) on every tensor.
//   MUON   Muon on the matrices of the blocks, AdamW on embedding, head and norms, each
//          with a learning rate of its own under the same schedule.
//
// Both scale the gradient down to train.clip_norm first, if its global norm is larger, and decay
// matrices only, the embedding and the head included.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cpu/scratch.h"
#include "worker/sync/backend.h"

namespace causeway::worker {

// The square of a vector's norm, with the same bits on every machine.

// In double. Value i goes to lane i mod 16, and the lanes are added in order: compilers may use
// vectors of any width for that without changing the result.
template <typename T>
double SumOfSquares(std::span<const T> values) {
  constexpr size_t kLanes = 16;
  std::array<double, kLanes> lanes = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (size_t lane = 0; i < values.size(); ++i, ++lane) {
    const auto value = static_cast<double>(values[i]);
    lanes[lane] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Muon: momentum whose singular values are all moved to about 1 before it is applied (Jordan et
// al., "Muon: An optimizer for hidden layers in neural networks", 2024; as the inner optimizer of
// DiLoCo: MuLoCo, arXiv 2505.23725). For the matrices of the blocks.
//
//   M = momentum * M + G
//   O = Orthogonalize(G + momentum * M)              (Nesterov)
//   W = W - lr * weight_decay * W
//   W = W - lr * sqrt(max(1, rows / cols)) * O

inline constexpr int kNewtonSchulzIterations = 5;

// Values of working memory that Orthogonalize and MuonStep::Apply need for such a matrix.
int64_t MuonScratchSize(int64_t rows, int64_t cols);

// Replaces the row-major matrix x = U S V^T by about U V^T: x is scaled to Frobenius norm 1, then
// the quintic iteration X <- a X + (b A + c A^2) X, A = X X^T, with (a, b, c) = (3.4445, -4.7750,
// 2.0315) brings all singular values that are not tiny into about [0.7, 1.2]. A tall matrix is
// treated by its columns (A = X^T X), as if it were transposed. `scratch` holds MuonScratchSize
// values and is overwritten. One thread, fixed order. T is float or double.
template <typename T>
void Orthogonalize(int64_t rows, int64_t cols, T* x, std::span<T> scratch);

// The constants of one step.
template <typename T>
struct MuonStep {
  T momentum = 0;
  T learning_rate = 0;
  T weight_decay = 0;
  T gradient_factor = 1;  // Multiplies the gradient (clipping).

  // One matrix, row-major. `scratch` as for Orthogonalize.
  void Apply(int64_t rows, int64_t cols, const T* gradient, T* weight, T* moment,
             std::span<T> scratch) const;
};

// T is float, or double for tests. Work is cut into tasks by the layout alone: the result has the
// same bits on any number of threads. Not thread-safe; uses the pool from the calling thread.
template <typename T>
class InnerOptimizer {
 public:
  // `train` must be complete (run_config.h). `pool` must outlive this; `plan` is read here only.
  InnerOptimizer(const FragmentPlan& plan, const v1::TrainConfig& train, ThreadPool* pool);
  InnerOptimizer(const InnerOptimizer&) = delete;
  InnerOptimizer& operator=(const InnerOptimizer&) = delete;

  // One update of `weights` by `gradients`, both of plan.arena_size() values. `step` >= 1 is the
  // run's inner step, for the schedule. The bias correction counts this optimizer's own updates
  // instead: a worker that joins at a late step starts with fresh moments. Alignment gaps stay as
  // they are.
  //
  // OUT_OF_RANGE if the gradient is not finite; nothing has changed then.
  absl::StatusOr<OptimizerReport> Step(int64_t step, std::span<T> weights,
                                       std::span<const T> gradients);

  // The moments in arena layout. The first is Muon's momentum where Muon is at work; the second is
  // 0 there. With updates(), that is the whole state.
  std::span<T> first_moments() { return m_; }
  std::span<T> second_moments() { return v_; }
  // Calls of Step that succeeded.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

 private:
  // A run of values of one tensor that AdamW updates as one task.
  struct Slice {
    int64_t begin;  // In the arena.
    int64_t size;
    bool decays;
  };
  struct Matrix {
    int64_t begin;
    int64_t rows;
    int64_t cols;
  };

  double GradientNorm(std::span<const T> gradients);

  const v1::TrainConfig train_;
  ThreadPool* const pool_;
  std::vector<Matrix> muon_;  // The largest first, so that no thread begins it last.
  std::vector<Slice> adamw_;
  std::vector<double> partial_sums_;
  std::vector<T> m_;
  std::vector<T> v_;
  int64_t updates_ = 0;
};

}  // namespace causeway::worker
