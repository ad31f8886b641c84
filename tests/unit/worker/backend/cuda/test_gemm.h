// The matrix products that tests of the CUDA backend use: emulated ones on emulated devices,
// cuBLASLt on GPUs.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"
#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulated_gemm.h"
#else
#include "worker/backend/cuda/cublaslt.h"
#endif

namespace causeway::worker::cuda {

// For the calling thread's device.
inline absl::StatusOr<std::unique_ptr<Gemm>> MakeTestGemm([[maybe_unused]] const DeviceInfo& device,
                                                          [[maybe_unused]] DeviceMemory* memory) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  return emulation::MakeEmulatedGemm();
#else
  static GemmPlanStore plans;
  return MakeCublasLtGemm(device, memory, &plans);
#endif
}

}  // namespace causeway::worker::cuda
