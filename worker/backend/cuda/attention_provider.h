// Who computes attention on a GPU: the kernels of attention.h, or cuDNN (cudnn_attention.h).
// Layouts and meaning are those of attention.h, and so is what the backward pass needs of the
// forward pass.
//
// Calls enqueue and return; they may be captured in a graph once a first one has run. Nothing is
// allocated after UseWorkspace. The same input gives the same bits every time.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_PROVIDER_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_PROVIDER_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/attention/attention.h"
#include "worker/backend/cuda/device/device.h"

namespace causeway::worker::cuda {

// One GPU's, made and used by its thread.
class AttentionProvider {
 public:
  virtual ~AttentionProvider() = default;

  // With the version of what rounds in its own way: providers of one name give the same bits.
  virtual std::string name() const = 0;
  // Device memory that it works in, aligned to 256 bytes; it outlives the provider. Before the
  // first pass.
  virtual size_t workspace_bytes() const { return 0; }
  virtual void UseWorkspace(void* /*workspace*/) {}

  virtual absl::Status Forward(const AttentionShape& shape, const __nv_bfloat16* qkv,
                               const int32_t* document_starts, __nv_bfloat16* out,
                               float* log_sum_exp, cudaStream_t stream) = 0;
  virtual absl::Status Backward(const AttentionShape& shape, const __nv_bfloat16* qkv,
                                const int32_t* document_starts, const __nv_bfloat16* out,
                                const float* log_sum_exp, const __nv_bfloat16* dout, float* delta,
                                __nv_bfloat16* dqkv, cudaStream_t stream) = 0;
};

// Makes the attention of the windows of training on the calling thread's device. Called by every
// GPU's thread.
using MakeAttention = std::function<absl::StatusOr<std::unique_ptr<AttentionProvider>>(
    const DeviceInfo& device, const AttentionShape& shape, DeviceMemory* memory)>;

inline constexpr char kOwnAttention[] = "own kernels";

// The kernels of attention.h.
class OwnAttention final : public AttentionProvider {
 public:
  std::string name() const override { return kOwnAttention; }
  absl::Status Forward(const AttentionShape& shape, const __nv_bfloat16* qkv,
                       const int32_t* document_starts, __nv_bfloat16* out, float* log_sum_exp,
                       cudaStream_t stream) override {
    AttentionForward(shape, qkv, document_starts, out, log_sum_exp, stream);
    return absl::OkStatus();
  }
  absl::Status Backward(const AttentionShape& shape, const __nv_bfloat16* qkv,
                        const int32_t* document_starts, const __nv_bfloat16* out,
                        const float* log_sum_exp, const __nv_bfloat16* dout, float* delta,
                        __nv_bfloat16* dqkv, cudaStream_t stream) override {
    AttentionBackward(shape, qkv, document_starts, out, log_sum_exp, dout, delta, dqkv, stream);
    return absl::OkStatus();
  }
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_PROVIDER_H_
