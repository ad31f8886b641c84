// Muon: momentum whose singular values are all moved to about 1 before it is applied (Jordan et
// al., "Muon: An optimizer for hidden layers in neural networks", 2024; as the inner optimizer of
// DiLoCo: MuLoCo, arXiv 2505.23725). For the matrices of the blocks.
//
//   M = momentum * M + G
//   O = Orthogonalize(G + momentum * M)              (Nesterov)
//   W = W - lr * weight_decay * W
//   W = W - lr * sqrt(max(1, rows / cols)) * O
#ifndef CAUSEWAY_WORKER_BACKEND_CPU_MUON_H_
#define CAUSEWAY_WORKER_BACKEND_CPU_MUON_H_

#include <cstdint>
#include <span>

namespace causeway::worker {

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

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_CPU_MUON_H_
