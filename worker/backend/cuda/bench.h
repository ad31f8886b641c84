// How fast one GPU trains a model, against what it could do.
//
// A step is forward and backward over a batch of random tokens and the optimizer, through
// CudaBackend. The rates that it is compared with are measured in the same call, before and after
// the steps: the largest matrix products through the same library, copies in the device's memory,
// and mma.sync. The higher of the two is the limit. The roofline is the time of a step in which
// products and attention run at the rate of the largest products and everything else at that of a
// copy, one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {

// A GPU's rates, measured in the run that compares with them: matrix products, copies in its
// memory, and mma.sync, which the attention kernels are made of.

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

// The kernels and products of a training step, each timed alone at the model's shapes: where a
// step's time goes, and how far each is from what bounds it.

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

struct CudaBenchOptions {
  std::string model;              // A preset of run_config.h.
  int sequence_length = 0;        // Tokens per window; 0: the preset's.
  int micro_batch_sequences = 4;  // Windows per forward and backward pass.
  int batch_sequences = 0;        // Windows per step, a multiple of it; 0: the same.
  int steps = 3;                  // Timed, after two that warm up.
  bool muon = false;              // Muon in place of AdamW.
  DeviceInfo device;
  MakeGemm make_gemm;
  MakeAttention make_attention;  // Null: own kernels.
  RateSizes rates;
};

// Keys: model, shape (ModelConfig), device, parameters, sequence_length, micro_batch_sequences,
// batch_sequences, steps, optimizer, attention (who computes it), recompute, memory_gb,
// flops_per_token (as in worker/backend/cpu/bench.h), seconds_per_step (the median step),
// step_seconds (every step), tokens_per_second, tflops, mfu (of the datasheet's peak, null for
// unknown devices), rates (gemm_tflops, copy_gb_per_s, mma_tflops), rates_spread (by the same
// names: how far before and after lie apart, as a part of the higher), roofline_seconds_per_step,
// roofline_tokens_per_second, roofline_fraction, kernels_fraction (the kernels' sum, as a part of
// the step), and kernels: for each name, calls_per_step, microseconds (of a call alone),
// milliseconds_per_step, tflops or gb_per_s, limit, limit_fraction. INVALID_ARGUMENT for an unknown
// model or an option out of range; errors of the device.
absl::StatusOr<nlohmann::json> BenchTraining(const CudaBenchOptions& options);

// The datasheet's rate of dense bf16 products, in FLOP/s; 0 for unknown devices.
double DatasheetFlops(const std::string& device);

}  // namespace causeway::worker::cuda
