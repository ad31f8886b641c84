// The kernels and products of a training step, each timed alone at the model's shapes: where a
// step's time goes, and how far each is from what bounds it.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_STEP_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_STEP_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/attention_provider.h"
#include "worker/backend/cuda/bench/bench_rates.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/gemm.h"

namespace causeway::worker::cuda {

enum class KernelLimit { kProducts, kAttention, kMemory };

// FLOPs are those that have to be done, once: what attention's backward pass computes again does
// not count. Bytes likewise: every input read once, every output written once.
struct KernelTime {
  std::string name;
  KernelLimit limit = KernelLimit::kMemory;
  int64_t calls = 0;   // Per step.
  double flops = 0;    // Per call.
  double bytes = 0;    // Per call; 0 for products.
  double seconds = 0;  // Per call.

  // Least time of a call alone: products at the rate of the largest ones, our own attention at
  // that of mma.sync, everything else at that of a copy.
  double LeastSeconds(const DeviceRates& rates) const;
  // The same in a step, where attention too could be done at the rate of the largest products.
  double RooflineSeconds(const DeviceRates& rates) const;
};

// Times the kernels of one GPU, with AdamW if that is the optimizer: Muon's update is timed by
// whole steps alone. `config` must be complete and `plan` be made from it. Allocates for one block,
// the head and the optimizer, measures, and frees again.
absl::StatusOr<std::vector<KernelTime>> TimeStepKernels(const v1::RunConfig& config,
                                                        const FragmentPlan& plan,
                                                        const DeviceInfo& device, Gemm& gemm,
                                                        AttentionProvider& attention,
                                                        cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_BENCH_BENCH_STEP_H_
