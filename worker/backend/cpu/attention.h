// Causal attention of one head of one sequence, in blocks of query rows: scores exist for one
// block at a time, and the backward pass computes them again from the log-sum-exp.
#pragma once

#include <cstdint>

namespace causeway::worker {

// One head's matrices, each [length, head_dim] with its own stride (values between rows). The
// scale of the scores is 1 / sqrt(head_dim).
template <typename T>
struct AttentionHead {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t qkv_stride = 0;
  T* out = nullptr;  // Written by the forward pass, read by the backward pass.
  int64_t out_stride = 0;
  T* log_sum_exp = nullptr;  // [length]; the same.

  // The same from row `begin` on.
  AttentionHead From(int64_t begin) const {
    return {q + begin * qkv_stride,   k + begin * qkv_stride,
            v + begin * qkv_stride,   qkv_stride,
            out + begin * out_stride, out_stride,
            log_sum_exp + begin};
  }
};

template <typename T>
struct AttentionHeadGradients {
  const T* dout = nullptr;  // Stride: out_stride.
  T* dq = nullptr;
  int64_t dq_stride = 0;
  T* dk = nullptr;
  T* dv = nullptr;
  int64_t dkv_stride = 0;

  AttentionHeadGradients From(int64_t begin, int64_t out_stride) const {
    return {dout + begin * out_stride, dq + begin * dq_stride,  dq_stride,
            dk + begin * dkv_stride,   dv + begin * dkv_stride, dkv_stride};
  }
};

// Values from one row of scores to the next: the kernels load and store whole vectors past the
// last column.
inline int64_t ScoreStride(int64_t length) { return (length + 63) / 64 * 64; }

// Both run in the calling thread, in its ThreadScratch, and overwrite their results.
template <typename T>
void AttentionForward(int64_t length, int64_t head_dim, const AttentionHead<T>& head);
template <typename T>
void AttentionBackward(int64_t length, int64_t head_dim, const AttentionHead<T>& head,
                       const AttentionHeadGradients<T>& gradients);

}  // namespace causeway::worker
