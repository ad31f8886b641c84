// The benchmark of the CUDA backend with the library that it runs on, cuBLASLt.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_OPEN_OPEN_BENCH_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_OPEN_OPEN_BENCH_H_

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/bench/bench.h"

namespace causeway::worker::cuda {

// BenchTraining on one GPU: `device`, or the first one if it is negative. `options` without device,
// make_gemm and make_attention. `attention` and `deterministic` as OpenOptions'. Errors of
// DiscoverDevices, CublasLtLibrary::Open, ChooseAttention and BenchTraining.
absl::StatusOr<nlohmann::json> BenchOnGpu(int device, AttentionPreference attention,
                                          bool deterministic, CudaBenchOptions options,
                                          FileSystem& files);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_OPEN_OPEN_BENCH_H_
