// Causal attention with grouped queries on the GPU, forward and backward, in the manner of
// FlashAttention-2: scores exist for a tile at a time in registers, and the backward pass computes
// them again from the log-sum-exp. Products are bf16 with fp32 accumulation; the probabilities and
// the scores' gradients are rounded to bf16 before they are multiplied.
//
// Nothing is allocated and nothing waits; calls may be captured in a graph. A call that cannot be
// launched shows in cudaGetLastError(). Sums have one order, without atomics: the same input gives
// the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// tokens = sequences * length, in that order. The scale of the scores is 1 / sqrt(head_dim).
struct AttentionShape {
  int sequences = 0;
  int length = 0;
  int heads = 0;
  int kv_heads = 0;  // Divides heads; heads / kv_heads neighbours share a key and a value head.
  int head_dim = 0;
  // Pairs of a sequence and a head that are computed side by side, all their rows before those of
  // the next ones; 0: as many as a cache holds. The bits do not depend on it.
  int heads_at_a_time = 0;
  bool operator==(const AttentionShape&) const = default;
};

// Why no kernel takes this shape, and what to do about it, or nullptr: to be asked at start.
const char* AttentionRefusal(const AttentionShape& shape);

// The pairs of a sequence and a head whose blocks a launch has side by side: so many that what they
// read again and again, keys and values, stays in the device's cache. `of_keys`: of the pass over
// keys, pairs of a sequence and a key head, which read queries and gradients again.
int AttentionHeadsAtATime(const AttentionShape& shape, bool of_keys);

// All pointers are on the device and aligned to 16 bytes.
struct AttentionCall {
  AttentionShape shape;
  // [tokens, heads + 2 kv_heads, head_dim]: queries, keys, values.
  const __nv_bfloat16* qkv = nullptr;
  // [tokens], or null: a position attends to nothing before the place in its sequence that the
  // value names. At most the position, and never falling from one position of a sequence to the
  // next.
  const int32_t* document_starts = nullptr;
  // Written by the forward pass, read by the backward pass.
  __nv_bfloat16* out = nullptr;  // [tokens, heads, head_dim]
  float* log_sum_exp = nullptr;  // [sequences, heads, length]: natural, of the scaled scores
  // The backward pass alone has these.
  const __nv_bfloat16* dout = nullptr;  // Of out's shape.
  float* delta = nullptr;  // Scratch of log_sum_exp's size: the sums over a row of dout * out.
  // Of qkv's shape, overwritten; keys and values summed over the queries' heads that share them, in
  // order of head.
  __nv_bfloat16* dqkv = nullptr;
};
void AttentionForward(const AttentionCall& call, cudaStream_t stream);
void AttentionBackward(const AttentionCall& call, cudaStream_t stream);

}  // namespace causeway::worker::cuda
