#include "worker/backend/cpu/kernels.h"

#include <omp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "dnnl.h"
#include "worker/backend/cpu/scratch.h"

namespace causeway::worker {
namespace {

// An output tile: large enough for the library to pack its operands at small cost, small enough to
// give a training step's products more tasks than cores. Part of the result's bits.
constexpr int64_t kTileRows = 512;
constexpr int64_t kTileColumns = 768;
// With A transposed (weight gradients), a tile reads short pieces of A's long rows, a stride apart
// that fills few sets of the caches: up to a quarter of the speed is lost. Such tiles are smaller,
// and A is copied, so many rows at a time, to where it is contiguous and stays in the cache.
constexpr int64_t kTransposedTileRows = 384;
constexpr int64_t kPanelDepth = 1024;
constexpr int64_t kLongRow = 1024;

// Splits `size` into equal tiles of at most `limit`, rounded up to 16 values.
int64_t EvenTile(int64_t size, int64_t limit) {
  const int64_t tiles = (size + limit - 1) / limit;
  const int64_t tile = (size + tiles - 1) / tiles;
  return (tile + 15) / 16 * 16;
}

template <typename T>
const T* OperandAt(const T* operand, bool transposed, int64_t stride, int64_t row, int64_t column) {
  return transposed ? operand + column * stride + row : operand + row * stride + column;
}

// The plain loop for double: operands are copied into small contiguous blocks, so that transposes
// and strides cost little and the innermost loop runs over neighbours.
constexpr int64_t kBlock = 48;

void BlockedGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
                 const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
                 int64_t ldc) {
  double block_a[kBlock][kBlock];
  double block_b[kBlock][kBlock];
  double sum[kBlock][kBlock];
  for (int64_t i0 = 0; i0 < m; i0 += kBlock) {
    const int64_t rows = std::min(kBlock, m - i0);
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      const int64_t columns = std::min(kBlock, n - j0);
      for (auto& row : sum) std::fill(std::begin(row), std::end(row), 0.0);
      for (int64_t l0 = 0; l0 < k; l0 += kBlock) {
        const int64_t depth = std::min(kBlock, k - l0);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t l = 0; l < depth; ++l) {
            block_a[i][l] = *OperandAt(a, transpose_a, lda, i0 + i, l0 + l);
          }
        }
        for (int64_t l = 0; l < depth; ++l) {
          for (int64_t j = 0; j < columns; ++j) {
            block_b[l][j] = *OperandAt(b, transpose_b, ldb, l0 + l, j0 + j);
          }
        }
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t l = 0; l < depth; ++l) {
            const double factor = block_a[i][l];
            for (int64_t j = 0; j < columns; ++j) sum[i][j] += factor * block_b[l][j];
          }
        }
      }
      for (int64_t i = 0; i < rows; ++i) {
        double* out = c + (i0 + i) * ldc + j0;
        for (int64_t j = 0; j < columns; ++j) {
          out[j] = alpha * sum[i][j] + (beta == 0 ? 0.0 : beta * out[j]);
        }
      }
    }
  }
}

// One tile of C = alpha * A^T B + beta * C with m <= kTransposedTileRows.
template <typename T>
void PanelTile(bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
               const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  static thread_local AlignedVector<T> panel;
  panel.resize(static_cast<size_t>(kPanelDepth * kTransposedTileRows));
  for (int64_t begin = 0; begin < k; begin += kPanelDepth) {
    const int64_t depth = std::min(kPanelDepth, k - begin);
    for (int64_t l = 0; l < depth; ++l) {
      std::copy_n(a + (begin + l) * lda, m, panel.data() + l * m);
    }
    GemmTile<T>(true, transpose_b, m, n, depth, alpha, panel.data(), m,
                OperandAt(b, transpose_b, ldb, begin, 0), ldb, begin == 0 ? beta : T{1}, c, ldc);
  }
}

}  // namespace

template <>
void GemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
              const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
              int64_t ldc) {
  if (m == 0 || n == 0) return;
  // oneDNN takes the number of threads from OpenMP's setting of the calling thread.
  static thread_local const bool single_threaded = (omp_set_num_threads(1), true);
  static_cast<void>(single_threaded);
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                          alpha, a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success) {
    Fatal(absl::StrCat("dnnl_sgemm of ", m, " x ", n, " x ", k, " failed with status ",
                       static_cast<int>(status)));
  }
}

template <>
void GemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
              const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
              int64_t ldc) {
  BlockedGemm(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <typename T>
void Gemm(ThreadPool* pool, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
          T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  const int64_t tile_rows = EvenTile(m, transpose_a ? kTransposedTileRows : kTileRows);
  const int64_t tile_columns = EvenTile(n, kTileColumns);
  const int64_t column_tiles = (n + tile_columns - 1) / tile_columns;
  const int64_t tiles = (m + tile_rows - 1) / tile_rows * column_tiles;
  const auto run_tile = [&](int64_t tile) {
    const int64_t row = tile / column_tiles * tile_rows;
    const int64_t column = tile % column_tiles * tile_columns;
    const int64_t rows = std::min(tile_rows, m - row);
    const int64_t columns = std::min(tile_columns, n - column);
    const T* const tile_a = OperandAt(a, transpose_a, lda, row, 0);
    const T* const tile_b = OperandAt(b, transpose_b, ldb, 0, column);
    T* const tile_c = c + row * ldc + column;
    if (transpose_a && lda >= kLongRow) {
      PanelTile(transpose_b, rows, columns, k, alpha, tile_a, lda, tile_b, ldb, beta, tile_c, ldc);
    } else {
      GemmTile(transpose_a, transpose_b, rows, columns, k, alpha, tile_a, lda, tile_b, ldb, beta,
               tile_c, ldc);
    }
  };
  if (pool == nullptr) {
    for (int64_t tile = 0; tile < tiles; ++tile) run_tile(tile);
  } else {
    pool->ParallelFor(tiles, run_tile);
  }
}

template void Gemm(ThreadPool*, bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t,
                   const float*, int64_t, float, float*, int64_t);
template void Gemm(ThreadPool*, bool, bool, int64_t, int64_t, int64_t, double, const double*,
                   int64_t, const double*, int64_t, double, double*, int64_t);

}  // namespace causeway::worker
