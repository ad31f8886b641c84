// A GPU's rates, measured in the run that compares with them: matrix products, copies in its
// memory, and mma.sync, which the attention kernels are made of.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_RATES_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_RATES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/gemm.h"

namespace causeway::worker::cuda {

// Seconds of one call of `enqueue` on the stream: the median of a few samples, each of as many
// calls as last a millisecond or so. Warms up first, and waits.
absl::StatusOr<double> MedianSeconds(const std::function<absl::Status()>& enqueue,
                                     cudaStream_t stream);

struct RateSizes {
  int64_t product = 8192;                 // Rows and columns of square matrices.
  int64_t copy_bytes = int64_t{1} << 30;  // Far more than any cache.
  int64_t mma_iterations = 4096;
};

struct DeviceRates {
  // bf16 products of random values, per second, in bursts of a millisecond, as kernels are timed
  // alone. Over seconds a GPU lowers its clock by as much as its power and its neighbours make it:
  // 412 to 696 TFLOP/s on one H200, where bursts repeat.
  double gemm_flops = 0;
  double copy_bytes = 0;  // Read and written together, per second.
  double mma_flops = 0;   // The best that mma.sync gives, from registers, per second.
};

// Allocates, measures, and frees again.
absl::StatusOr<DeviceRates> MeasureRates(const RateSizes& sizes, int multiprocessors, Gemm& gemm,
                                         cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_RATES_H_
