// The element-wise kernels of the CPU backend, for float and double from one source, compiled for
// every instruction set that Highway knows and chosen when the program starts.
//
// Every kernel works on a range of rows in the calling thread and touches nothing else: the caller
// cuts the rows into tasks. Sums run in the order of the vector lanes, which is fixed on one
// machine. `stride` is the number of values from one row to the next. Pointers need no alignment.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/base/thread_pool.h"
#include "common/params/adamw.h"

namespace causeway::worker {

// The shape that the rotary kernels need.
struct HeadShape {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rotated() const { return query_heads + kv_heads; }  // Heads that RoPE turns.
};

template <typename T>
struct Kernels {
  // LayerNorm, out = (x - mean(x)) / deviation(x) * weight + bias, or without a bias (null)
  // RMSNorm, out = x / rms(x) * weight, per row of `width` contiguous values. With `addend`, x is
  // first replaced by x_in + addend and stored to `x_out`; otherwise x is x_in and x_out is not
  // written. inverse_deviation [rows], 1 / deviation or 1 / rms, is kept for the backward pass.
  void (*norm)(const T* x_in, const T* addend, const T* weight, const T* bias, T epsilon,
               int64_t rows, int64_t width, T* x_out, T* out, T* inverse_deviation);

  // dx (+)= the gradient through the norm; out = the norm's output again; dweight [width] and, with
  // a bias, dbias [width] += the rows' share of their gradients.
  void (*norm_backward)(const T* dout, const T* x, const T* weight, const T* bias,
                        const T* inverse_deviation, int64_t rows, int64_t width, bool accumulate,
                        T* dx, T* out, T* dweight, T* dbias);

  // One token's query and key heads, contiguous in `heads` [rotated, head_dim], in place:
  // optional RMSNorm per head, then RoPE. With query_weight == null there is no norm, and raw and
  // inverse_rms are not written; otherwise raw [rotated, head_dim] and inverse_rms [rotated] keep
  // what the backward pass needs. cosine, sine: [head_dim / 2], of this position.
  void (*rotate)(const HeadShape& shape, const T* query_weight, const T* key_weight, T epsilon,
                 const T* cosine, const T* sine, T* heads, T* raw, T* inverse_rms);

  // The gradient of the same, in place on dheads; dweights [2, head_dim] += (queries, then keys).
  void (*rotate_backward)(const HeadShape& shape, const T* query_weight, const T* key_weight,
                          const T* cosine, const T* sine, const T* raw, const T* inverse_rms,
                          T* dheads, T* dweights);

  // hidden = silu(gate) * up; gate_up is [rows, 2, width].
  void (*swiglu)(const T* gate_up, int64_t rows, int64_t width, T* hidden);
  // Computes hidden again and replaces gate_up by its gradient.
  void (*swiglu_backward)(const T* dhidden, int64_t rows, int64_t width, T* gate_up, T* hidden);
  // hidden = gelu(up), tanh approximation; [rows, width].
  void (*gelu)(const T* up, int64_t rows, int64_t width, T* hidden);
  void (*gelu_backward)(const T* dhidden, int64_t rows, int64_t width, T* up, T* hidden);

  // Row r of `scores` attends to columns 0 .. first_valid + r. Replaces valid scores s by
  // exp(scale * (s - max)), the rest of the `columns` by 0; inverse_sum [rows] is 1 / the row's
  // sum; log_sum_exp [rows] that of scale * s. stride is a multiple of 64, at least `columns`.
  void (*causal_softmax)(T* scores, int64_t rows, int64_t columns, int64_t stride,
                         int64_t first_valid, T scale, T* inverse_sum, T* log_sum_exp);
  // Replaces scores by probabilities p = exp(scale * s - log_sum_exp), and dprobabilities by
  // scale * p * (dprobabilities - delta): the gradient of the scores.
  void (*causal_softmax_backward)(T* scores, T* dprobabilities, int64_t rows, int64_t columns,
                                  int64_t stride, int64_t first_valid, T scale,
                                  const T* log_sum_exp, const T* delta);
  // values[r, :] *= factors[r].
  void (*scale_rows)(T* values, int64_t rows, int64_t width, int64_t stride, const T* factors);
  // out[r] = sum over the row of a * b.
  void (*dot_rows)(const T* a, const T* b, int64_t rows, int64_t width, int64_t stride, T* out);

  // Cross entropy over the first `vocabulary` of `stride` logits per row. loss [rows] and
  // log_sum_exp [rows]; a row whose target is negative gets loss 0. With `gradient`, the logits are
  // replaced by d/dlogits of factor * (loss + z_loss * log_sum_exp^2), zero beyond the vocabulary.
  void (*classifier)(T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                     int64_t stride, T factor, T z_loss, bool gradient, T* loss, T* log_sum_exp);

  // out[b, r] = weights[r, :] . x[b, :] for `batch` rows of x, contiguous as those of weights:
  // products whose time is that of reading the weights once. A value's bits depend on its own two
  // rows alone. out_stride: from out[b, :] to out[b + 1, :].
  void (*dot_products)(const T* weights, int64_t rows, int64_t width, const T* x, int64_t batch,
                       T* out, int64_t out_stride);
  // out [width] = the sum over r of factors[r] * values[r, :]; rows are contiguous.
  void (*weighted_rows)(const T* values, int64_t rows, int64_t width, const T* factors, T* out);

  // sum += values.
  void (*add)(const T* values, int64_t size, T* sum);

  // AdamWStep::Apply on `size` values with gradients multiplied by gradient_factor, with the same
  // bits as the scalar code.
  void (*adamw)(const AdamWStep<T>& step, T weight_decay, T gradient_factor, const T* gradient,
                int64_t size, T* weight, T* m, T* v);
};

// The table for this machine. T is float or double.
template <typename T>
const Kernels<T>& GetKernels();
template <>
const Kernels<float>& GetKernels<float>();
template <>
const Kernels<double>& GetKernels<double>();

// Matrix products for the CPU backend: row-major, any transposes, over a thread pool.
//
// The output is cut into tiles whose size follows from the shape alone, each tile is one task and
// sums over k in one fixed order: the result has the same bits on any number of threads. float
// runs oneDNN's sgemm, single-threaded inside each task, so no OpenMP thread is ever started;
// double runs a plain blocked loop and is meant for tests.
//
// The thread that calls must block every signal that has a handler: with a large k, some of
// oneDNN's kernels use the stack pointer for a buffer on the heap (libdnnl 2.6.3, AVX-512), so a
// handler's frame would overwrite what lies below it.

// C = alpha * op(A) op(B) + beta * C, with op(A) of [m, k], op(B) of [k, n], C of [m, n].
// A is stored as [m, k], or as [k, m] when transpose_a; B as [k, n], or as [n, k] when
// transpose_b. lda, ldb, ldc: values from one stored row to the next, at least its length.
// With beta = 0, C is written without being read. C must not overlap A or B. `pool` may be null:
// then the calling thread does everything; from inside a task of a pool, pass null (or call
// GemmTile). T is float or double.
template <typename T>
void Gemm(ThreadPool* pool, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
          T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

// The same product as one task of the calling thread, without tiling. The bits may differ from
// Gemm's for the same operands.
template <typename T>
void GemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha,
              const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

template <>
void GemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
              const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
              int64_t ldc);
template <>
void GemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
              const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
              int64_t ldc);

// Tells where the time of a training step goes.

enum class KernelKind {
  kEmbedding,
  kNorm,          // RMSNorm with the residual additions.
  kBlockProduct,  // The blocks' matrix products, attention's excepted.
  kRotate,        // QK-norm and RoPE.
  kAttention,
  kActivation,
  kHeadProduct,  // The classifier's matrix products.
  kClassifier,
  kOptimizer,  // The gradient's norm, too.
};
inline constexpr std::array<const char*, 9> kKernelKindNames = {
    "embedding",  "norm",          "block_products", "rotate",   "attention",
    "activation", "head_products", "classifier",     "optimizer"};

// Seconds, indexed by KernelKind.
using KernelSeconds = std::array<double, kKernelKindNames.size()>;

// Adds the time of its own life.
class KernelTimer {
 public:
  KernelTimer(KernelSeconds& seconds, KernelKind kind)
      : total_(seconds[static_cast<size_t>(kind)]), start_(std::chrono::steady_clock::now()) {}
  ~KernelTimer() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace causeway::worker
