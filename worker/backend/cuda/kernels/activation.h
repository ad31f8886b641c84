// The MLP's activations. See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ACTIVATION_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ACTIVATION_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

// hidden [rows, width] = silu(gate) * up; gate_up is [rows, 2, width].
void SwigluForward(int64_t rows, int64_t width, const __nv_bfloat16* gate_up, __nv_bfloat16* hidden,
                   cudaStream_t stream);
// Replaces gate_up by its gradient. hidden gets the forward pass's output again; it may be dhidden,
// or null.
void SwigluBackward(int64_t rows, int64_t width, const __nv_bfloat16* dhidden,
                    __nv_bfloat16* gate_up, __nv_bfloat16* hidden, cudaStream_t stream);

// hidden = gelu(up), tanh approximation; [rows, width].
void GeluForward(int64_t rows, int64_t width, const __nv_bfloat16* up, __nv_bfloat16* hidden,
                 cudaStream_t stream);
// Replaces up by its gradient; hidden as above.
void GeluBackward(int64_t rows, int64_t width, const __nv_bfloat16* dhidden, __nv_bfloat16* up,
                  __nv_bfloat16* hidden, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_ACTIVATION_H_
