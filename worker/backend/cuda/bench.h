// How fast one GPU trains a model, against what it could do.
//
// A step is forward and backward over a batch of random tokens and the optimizer, through
// CudaBackend. The rates that it is compared with are measured in the same call, before and after
// the steps: the largest matrix products through the same library, copies in the device's memory,
// and mma.sync. The higher of the two is the limit. The roofline is the time of a step in which
// products and attention run at the rate of the largest products and everything else at that of a
// copy, one after the other.
//
// Then one step more is traced, kernel by kernel, and in two others every kernel is timed alone, on
// the step's own buffers (step_probe.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {

// Sizes of what is measured of a device.
struct RateSizes {
  int64_t product = 8192;                 // Rows and columns of square matrices.
  int64_t copy_bytes = int64_t{1} << 30;  // Far more than any cache.
  int64_t mma_iterations = 4096;
};

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
// the step), kernels: for each name, calls_per_step, microseconds (of a call alone),
// milliseconds_per_step, tflops or gb_per_s, limit, limit_fraction, traced_milliseconds (of all
// calls in the traced step); and trace: of a step that was issued kernel by kernel, seconds (from
// its first kernel to its last), gap_seconds (in none of these kernels), and gaps, the ten
// costliest by the kernels `after` and `before` which they are, with count and milliseconds.
// INVALID_ARGUMENT for an unknown model or an option out of range; errors of the device.
absl::StatusOr<nlohmann::json> BenchTraining(const CudaBenchOptions& options);

// The datasheet's rate of dense bf16 products, in FLOP/s; 0 for unknown devices.
double DatasheetFlops(const std::string& device);

}  // namespace causeway::worker::cuda
