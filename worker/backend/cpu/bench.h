// How fast this machine trains a model, against how fast it multiplies matrices.
//
// A step is forward, backward and AdamW on random tokens, by CpuBackend. FLOPs per token are
// counted as 6 N + 6 L q T: N values in matrices that a token is multiplied with (the head
// included, the embedding's look-up not), L blocks, q = heads * head_dim, T tokens per window, the
// causal half of attention. The peak is that of single-precision products of 2048 x 2048 x 2048,
// measured before and after the steps, one product per thread at a time.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/sync/backend.h"

namespace causeway::worker {

struct BenchOptions {
  std::string model = "gpt2-124m-shape";  // A preset of run_config.h.
  int sequence_length = 0;                // Tokens per window; 0: the preset's.
  int micro_batch_sequences = 4;          // Windows per step.
  int steps = 3;                          // Timed, after one that warms up.
  int threads = 0;                        // 0: as many as the machine has.
};

// Keys: model, parameters, sequence_length, micro_batch_sequences, steps, threads,
// flops_per_token, seconds_per_step (the median step), tokens_per_second,
// tokens_per_second_per_core, gflops, sgemm_peak_gflops (all threads), sgemm_peak_gflops_per_core
// (one thread alone), peak_fraction (gflops / sgemm_peak_gflops), milliseconds_per_step by kind of
// kernel ("optimizer" and "other" included). INVALID_ARGUMENT for an unknown model or an option
// out of range.
absl::StatusOr<nlohmann::json> BenchTraining(const BenchOptions& options);

// What the bench on GPUs takes, too. The configuration of steps of `batch` windows, complete, with
// AdamW or Muon; a time in seconds; and a reader of random tokens.
absl::StatusOr<v1::RunConfig> BenchConfig(const std::string& model, int sequence_length,
                                          int micro_batch, int batch, bool muon);
double BenchNow();
MicroBatchReader RandomTokens(int vocabulary);

// The same counts and the same peak for who wants to estimate a step without making one: FLOPs of
// forward and backward per token, and FLOP/s of matrix products on so many threads (takes a second
// or two).
double FlopsPerToken(const v1::ModelConfig& model, const FragmentPlan& plan);
double MeasureMatrixRate(int threads);

// The vector instructions that the kernels use on this machine: "AVX3".
std::string VectorInstructions();

}  // namespace causeway::worker
