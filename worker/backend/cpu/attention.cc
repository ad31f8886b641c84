#include "worker/backend/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/scratch.h"

namespace causeway::worker {
namespace {

// Query rows per block. Short sequences take smaller blocks: half of a diagonal block is wasted.
constexpr int64_t kLongBlock = 128;
constexpr int64_t kShortBlock = 64;
constexpr int64_t kLongSequence = 512;

int64_t BlockRows(int64_t length) { return length >= kLongSequence ? kLongBlock : kShortBlock; }

template <typename T>
T ScoreScale(int64_t head_dim) {
  return static_cast<T>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace

template <typename T>
void AttentionForward(int64_t length, int64_t head_dim, const AttentionHead<T>& head) {
  const Kernels<T>& kernels = GetKernels<T>();
  const int64_t block = BlockRows(length);
  const int64_t stride = ScoreStride(length);
  T* const scores = ThreadScratch<T>(block * (stride + 1)).data();
  T* const inverse_sum = scores + block * stride;
  for (int64_t first = 0; first < length; first += block) {
    const int64_t rows = std::min(block, length - first);
    const int64_t columns = first + rows;
    T* const out = head.out + first * head.out_stride;
    GemmTile<T>(false, true, rows, columns, head_dim, T{1}, head.q + first * head.qkv_stride,
                head.qkv_stride, head.k, head.qkv_stride, T{0}, scores, stride);
    kernels.causal_softmax(scores, rows, columns, stride, first, ScoreScale<T>(head_dim),
                           inverse_sum, head.log_sum_exp + first);
    GemmTile<T>(false, false, rows, head_dim, columns, T{1}, scores, stride, head.v,
                head.qkv_stride, T{0}, out, head.out_stride);
    kernels.scale_rows(out, rows, head_dim, head.out_stride, inverse_sum);
  }
}

template <typename T>
void AttentionBackward(int64_t length, int64_t head_dim, const AttentionHead<T>& head,
                       const AttentionHeadGradients<T>& gradients) {
  const Kernels<T>& kernels = GetKernels<T>();
  const int64_t block = BlockRows(length);
  const int64_t stride = ScoreStride(length);
  T* const scores = ThreadScratch<T>(block * (2 * stride + 1)).data();
  T* const dscores = scores + block * stride;
  T* const delta = dscores + block * stride;
  // From the last block to the first: the last one reaches every key and so overwrites dk and dv,
  // the others add to them.
  const int64_t last = (length - 1) / block * block;
  for (int64_t first = last; first >= 0; first -= block) {
    const int64_t rows = std::min(block, length - first);
    const int64_t columns = first + rows;
    const T beta = first == last ? T{0} : T{1};
    const T* const q = head.q + first * head.qkv_stride;
    const T* const dout = gradients.dout + first * head.out_stride;
    kernels.dot_rows(dout, head.out + first * head.out_stride, rows, head_dim, head.out_stride,
                     delta);
    GemmTile<T>(false, true, rows, columns, head_dim, T{1}, q, head.qkv_stride, head.k,
                head.qkv_stride, T{0}, scores, stride);
    GemmTile<T>(false, true, rows, columns, head_dim, T{1}, dout, head.out_stride, head.v,
                head.qkv_stride, T{0}, dscores, stride);
    kernels.causal_softmax_backward(scores, dscores, rows, columns, stride, first,
                                    ScoreScale<T>(head_dim), head.log_sum_exp + first, delta);
    GemmTile<T>(true, false, columns, head_dim, rows, T{1}, scores, stride, dout, head.out_stride,
                beta, gradients.dv, gradients.dkv_stride);
    GemmTile<T>(false, false, rows, head_dim, columns, T{1}, dscores, stride, head.k,
                head.qkv_stride, T{0}, gradients.dq + first * gradients.dq_stride,
                gradients.dq_stride);
    GemmTile<T>(true, false, columns, head_dim, rows, T{1}, dscores, stride, q, head.qkv_stride,
                beta, gradients.dk, gradients.dkv_stride);
  }
}

template void AttentionForward(int64_t, int64_t, const AttentionHead<float>&);
template void AttentionForward(int64_t, int64_t, const AttentionHead<double>&);
template void AttentionBackward(int64_t, int64_t, const AttentionHead<float>&,
                                const AttentionHeadGradients<float>&);
template void AttentionBackward(int64_t, int64_t, const AttentionHead<double>&,
                                const AttentionHeadGradients<double>&);

}  // namespace causeway::worker
