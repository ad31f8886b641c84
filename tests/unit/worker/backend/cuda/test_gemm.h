// The matrix products that tests of the CUDA backend use: emulated ones on emulated devices,
// cuBLASLt on GPUs.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {

// For the calling thread's device.
inline absl::StatusOr<std::unique_ptr<Gemm>> MakeTestGemm(const DeviceInfo& device,
                                                          DeviceMemory* memory) {
  static GemmPlanStore plans;
  return MakeCublasLtGemm(device, memory, &plans);
}

}  // namespace causeway::worker::cuda
