#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "common/cli/command_line.h"
#include "worker/backend/cpu/bench.h"
#include "worker/commands/commands.h"

ABSL_DECLARE_FLAG(int, threads);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(std::string, model, "gpt2-124m-shape", "bench: a preset of the model's shape");
ABSL_FLAG(int, seq, 0, "bench: tokens per window; 0: the preset's");
ABSL_FLAG(int, micro_batch, 4, "bench: windows per forward and backward pass");
ABSL_FLAG(int, steps, 3, "bench: timed steps, after one that warms up");

namespace causeway::worker {

int RunBench() {
  BenchOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.sequence_length = absl::GetFlag(FLAGS_seq);
  options.micro_batch_sequences = absl::GetFlag(FLAGS_micro_batch);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.threads = absl::GetFlag(FLAGS_threads);
  const absl::StatusOr<nlohmann::json> result = BenchTraining(options);
  if (!result.ok()) return Refuse("causeway-worker bench", result.status());
  if (absl::GetFlag(FLAGS_json)) {
    std::printf("%s\n", result->dump(2).c_str());
    return 0;
  }
  std::printf(
      "%s, %ld tokens per window: %.1f tokens/s per core on %d threads, %.1f GFLOP/s, "
      "%.0f%% of the sgemm peak of %.1f GFLOP/s\n",
      options.model.c_str(), result->at("sequence_length").get<long>(),
      result->at("tokens_per_second_per_core").get<double>(), result->at("threads").get<int>(),
      result->at("gflops").get<double>(), 100 * result->at("peak_fraction").get<double>(),
      result->at("sgemm_peak_gflops").get<double>());
  for (const auto& [kind, milliseconds] : result->at("milliseconds_per_step").items()) {
    std::printf("  %-14s %9.1f ms per step\n", kind.c_str(), milliseconds.get<double>());
  }
  return 0;
}

}  // namespace causeway::worker
