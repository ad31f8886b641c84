// Attention by cuDNN: bf16, causal, grouped queries, forward and backward, of one shape. What it
// does not take is done by our own kernels: other shapes (evaluation's), and documents that must
// not see each other.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_CUDNN_CUDNN_ATTENTION_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_CUDNN_CUDNN_ATTENTION_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/attention_provider.h"

namespace causeway::worker::cuda {

// On the calling thread's device. `deterministic`: only algorithms that give the same bits every
// time are taken; others are named as such. FAILED_PRECONDITION if cuDNN is not there, or has none
// for the shape.
absl::StatusOr<std::unique_ptr<AttentionProvider>> MakeCudnnAttention(const AttentionShape& shape,
                                                                      bool deterministic);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_CUDNN_CUDNN_ATTENTION_H_
