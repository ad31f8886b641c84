// The benchmark of the CUDA backend with the library that it runs on, cuBLASLt.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cuda/bench.h"
#include "worker/commands/device_choice.h"

namespace causeway::worker::cuda {

// BenchTraining on one GPU of `devices`: the one that it names, or the first one. `options` without
// device, make_gemm and make_attention. INVALID_ARGUMENT if several are named; errors of
// DiscoverDevices, CublasLtLibrary::Open, ChooseAttention and BenchTraining.
absl::StatusOr<nlohmann::json> BenchOnGpu(const DeviceChoice& devices, CudaBenchOptions options,
                                          FileSystem& files);

}  // namespace causeway::worker::cuda
