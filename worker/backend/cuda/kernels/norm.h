// RMSNorm and LayerNorm over rows of the residual stream, with the addition to the stream that
// comes before them. See kernel_limits.h for what holds for all kernels.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_NORM_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_NORM_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace causeway::worker::cuda {

struct NormForwardArguments {
  int64_t rows = 0;
  int64_t width = 0;  // At most kMaxNormWidth.
  float epsilon = 0;
  const __nv_bfloat16* x = nullptr;       // [rows, width]
  const __nv_bfloat16* addend = nullptr;  // [rows, width], or null.
  const __nv_bfloat16* weight = nullptr;  // [width]
  const __nv_bfloat16* bias = nullptr;    // [width] makes it LayerNorm; null: RMSNorm.
  __nv_bfloat16* x_out = nullptr;      // [rows, width] = x + addend, may be x; null if addend is.
  __nv_bfloat16* out = nullptr;        // [rows, width], the norm of x_out as it was rounded.
  float* inverse_deviation = nullptr;  // [rows], 1 / rms or 1 / deviation, for the backward pass.
  float* mean = nullptr;               // [rows], LayerNorm alone.
};
void NormForward(const NormForwardArguments& arguments, cudaStream_t stream);

struct NormBackwardArguments {
  int64_t rows = 0;
  int64_t width = 0;
  const __nv_bfloat16* dout = nullptr;       // [rows, width]
  const __nv_bfloat16* x = nullptr;          // [rows, width], the norm's input.
  const __nv_bfloat16* weight = nullptr;     // [width]
  const __nv_bfloat16* bias = nullptr;       // [width], or null: RMSNorm.
  const float* inverse_deviation = nullptr;  // Kept from the forward pass.
  const float* mean = nullptr;               // The same; LayerNorm alone.
  bool accumulate_dx = false;                // dx += instead of dx =.
  __nv_bfloat16* dx = nullptr;               // [rows, width]
  __nv_bfloat16* out = nullptr;              // [rows, width], the norm's output again, or null.
  bool accumulate_weight = false;            // dweight and dbias += instead of =.
  float* dweight = nullptr;                  // [width]
  float* dbias = nullptr;                    // [width], LayerNorm alone.
  float* scratch = nullptr;                  // NormBackwardScratch(...) values.
};
int64_t NormBackwardScratch(int64_t rows, int64_t width, bool layer_norm);
void NormBackward(const NormBackwardArguments& arguments, cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_KERNELS_NORM_H_
