// Matrix products on a GPU: bf16 in, sums in fp32, bf16 or fp32 out, row-major. What stands behind
// is cuBLASLt (cublaslt_gemm.h), or plain C++ under the tests' emulation.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_GEMM_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_GEMM_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace causeway::worker::cuda {

// An operand, as it is stored: rows of `stride` values. Matrices of a batch are `batch_stride`
// values apart.
struct GemmOperand {
  const __nv_bfloat16* data = nullptr;
  int64_t stride = 0;
  int64_t batch_stride = 0;
  bool transpose = false;
};

// D = alpha * op(A) op(B) + beta * C, of [m, k] [k, n] -> [m, n], `batch` times.
struct GemmCall {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  float alpha = 1;
  float beta = 0;
  GemmOperand a;  // [m, k], or [k, m] with transpose.
  GemmOperand b;  // [k, n], or [n, k] with transpose.
  // Exactly one of these two: D, of [m, n].
  __nv_bfloat16* d = nullptr;
  float* d_float = nullptr;
  int64_t d_stride = 0;
  int64_t d_batch_stride = 0;
  // Read unless beta = 0: D itself, or of the same shape, type and strides. The product may be
  // rounded to D's type before C is added: bf16 has two roundings then.
  const void* c = nullptr;
  // [n], added to every row of a bf16 D, before rounding; or null.
  const __nv_bfloat16* bias = nullptr;
};

// One GPU's, used by its thread alone. Pointers are aligned to 16 bytes and strides are multiples
// of 8 values.
class Gemm {
 public:
  virtual ~Gemm() = default;

  // Enqueues the product. Equal calls have equal bits. Everything that a first call of a shape
  // prepares is prepared outside of recorded graphs: a shape must have been run before its first
  // record.
  virtual absl::Status Run(const GemmCall& call, cudaStream_t stream) = 0;

  // While tuning is on, a shape's first call measures which way of computing it is the fastest,
  // waiting for the stream. Otherwise it takes the way that is recommended.
  virtual void SetTuning(bool /*on*/) {}
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_GEMM_H_
