// Muon's orthogonalization (worker/backend/cpu/muon.h) of many equally shaped matrices at once, as
// batches of bf16 products.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_NEWTON_SCHULZ_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_NEWTON_SCHULZ_H_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/gemm.h"

namespace causeway::worker::cuda {

// `count` matrices of one shape.
struct MatrixBatch {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t count = 0;
};

// Used by one thread.
class NewtonSchulz {
 public:
  // Allocates for the batches that Orthogonalize will be called with.
  static absl::StatusOr<NewtonSchulz> Create(const std::vector<MatrixBatch>& batches,
                                             DeviceMemory* memory, Gemm* gemm);

  // Enqueues: replaces each of the matrices [count, rows, cols], X = U S V^T, by about U V^T.
  absl::Status Orthogonalize(const MatrixBatch& batch, __nv_bfloat16* matrices,
                             cudaStream_t stream) const;

 private:
  explicit NewtonSchulz(Gemm* gemm) : gemm_(gemm) {}
  absl::Status Iterate(const MatrixBatch& batch, const __nv_bfloat16* from, __nv_bfloat16* to,
                       cudaStream_t stream) const;

  Gemm* gemm_;
  __nv_bfloat16* next_ = nullptr;        // The matrices after an iteration.
  __nv_bfloat16* gram_ = nullptr;        // A = X X^T, or X^T X of tall ones.
  __nv_bfloat16* polynomial_ = nullptr;  // b A + c A^2
  double* scratch_ = nullptr;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_NEWTON_SCHULZ_H_
