// Matrix products for the CPU backend: row-major, any transposes, over a thread pool.
//
// The output is cut into tiles whose size follows from the shape alone, each tile is one task and
// sums over k in one fixed order: the result has the same bits on any number of threads. float
// runs oneDNN's sgemm, single-threaded inside each task, so no OpenMP thread is ever started;
// double runs a plain blocked loop and is meant for tests.
#ifndef CAUSEWAY_WORKER_BACKEND_CPU_GEMM_H_
#define CAUSEWAY_WORKER_BACKEND_CPU_GEMM_H_

#include <cstdint>

#include "common/base/thread_pool.h"

namespace causeway::worker {

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

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_BACKEND_CPU_GEMM_H_
