// Gemm by cuBLASLt. A shape's first call makes a plan, which is found again by everything that it
// depends on; while tuning is on, the eight ways that the library recommends are timed and the
// fastest is kept.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_CUBLASLT_CUBLASLT_GEMM_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_CUBLASLT_CUBLASLT_GEMM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/gemm_plan_store.h"

namespace causeway::worker::cuda {

// For the calling thread's device. The workspace comes from `memory`; `plans` outlives the Gemm.
// Errors of CublasLtLibrary::Open.
absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasLtGemm(const DeviceInfo& device,
                                                       DeviceMemory* memory, GemmPlanStore* plans);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_CUBLASLT_CUBLASLT_GEMM_H_
