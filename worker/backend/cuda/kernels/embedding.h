// Embeddings of tokens and of positions. See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_EMBEDDING_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_EMBEDDING_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

struct EmbeddingForwardArguments {
  int64_t tokens = 0;  // All windows together.
  int64_t length = 0;  // Tokens per window.
  int64_t width = 0;
  const int32_t* inputs = nullptr;           // [tokens]
  const __nv_bfloat16* embedding = nullptr;  // [vocabulary, width]
  const __nv_bfloat16* positions = nullptr;  // [at least length, width], or null.
  __nv_bfloat16* out = nullptr;              // [tokens, width]
};
void EmbeddingForward(const EmbeddingForwardArguments& arguments, cudaStream_t stream);

struct EmbeddingBackwardArguments {
  int64_t tokens = 0;
  int64_t width = 0;
  const int32_t* inputs = nullptr;      // [tokens]
  const int32_t* order = nullptr;       // [tokens], of TokenOrder (token_order.h).
  const __nv_bfloat16* dout = nullptr;  // [tokens, width]
  float* dembedding = nullptr;          // [vocabulary, width] +=; rows of other tokens stay.
  float* scratch = nullptr;             // EmbeddingBackwardScratch(tokens, width) values.
};
int64_t EmbeddingBackwardScratch(int64_t tokens, int64_t width);
void EmbeddingBackward(const EmbeddingBackwardArguments& arguments, cudaStream_t stream);

struct PositionsBackwardArguments {
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t learned_positions = 0;  // At least length.
  int64_t width = 0;
  const __nv_bfloat16* dout = nullptr;  // [sequences, length, width]
  bool accumulate = false;              // Without, positions from length on become 0.
  float* dpositions = nullptr;          // [learned_positions, width]
};
void PositionsBackward(const PositionsBackwardArguments& arguments, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_EMBEDDING_H_
