// The work on queries and keys between projection and attention: optional RMSNorm per head, then
// the rotary embedding, which turns the pairs (i, i + head_dim / 2) by the angles of the position.
// See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ROTARY_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ROTARY_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// A row of heads is [query_heads + kv_heads, head_dim], at the beginning of a longer one.
struct RotaryShape {
  int64_t tokens = 0;  // All windows together.
  int64_t length = 0;  // Tokens per window: token n has position n % length.
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;                         // Limits: kernel_limits.h.
  const __nv_bfloat16* query_weight = nullptr;  // [head_dim]; null: no norm.
  const __nv_bfloat16* key_weight = nullptr;    // The same.
  float epsilon = 0;
  const float* cosine = nullptr;  // [length, head_dim / 2]; null: nothing is turned.
  const float* sine = nullptr;    // The same.
};

struct RotaryForwardArguments {
  RotaryShape shape;
  const __nv_bfloat16* in = nullptr;
  int64_t in_stride = 0;         // Values from one token to the next.
  __nv_bfloat16* out = nullptr;  // May be `in`; only queries and keys are written.
  int64_t out_stride = 0;
};
void RotaryForward(const RotaryForwardArguments& arguments, cudaStream_t stream);

// The gradient of the same, in place.
struct RotaryBackwardArguments {
  RotaryShape shape;
  const __nv_bfloat16* raw = nullptr;  // `in` of the forward pass; may be null without norm.
  int64_t raw_stride = 0;
  __nv_bfloat16* dheads = nullptr;
  int64_t dheads_stride = 0;
  // With norm alone:
  bool accumulate_weight = false;
  float* dquery_weight = nullptr;  // [head_dim]
  float* dkey_weight = nullptr;    // [head_dim]
  float* scratch = nullptr;        // RotaryBackwardScratch(shape) values.
};
int64_t RotaryBackwardScratch(const RotaryShape& shape);
void RotaryBackward(const RotaryBackwardArguments& arguments, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ROTARY_H_
