#include <cstdio>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/backend/cpu/bench.h"
#include "worker/commands/commands.h"

ABSL_DECLARE_FLAG(int, threads);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(std::string, model, "gpt2-124m-shape", "a preset of the model's shape");
ABSL_FLAG(int, seq, 0, "tokens per window; 0: the preset's");
ABSL_FLAG(int, micro_batch, 4, "windows per forward and backward pass");
ABSL_FLAG(int, batch, 0, "on GPUs: windows per step, a multiple of --micro_batch; 0: the same");
ABSL_FLAG(int, steps, 3, "timed steps, after one that warms up");
ABSL_FLAG(std::string, optimizer, "adamw", "on GPUs: adamw or muon");

namespace causeway::worker {
namespace {

using nlohmann::json;

absl::StatusOr<json> BenchOnCpu(const BenchOptions& options) {
  if (absl::GetFlag(FLAGS_batch) != 0 || absl::GetFlag(FLAGS_optimizer) != "adamw") {
    return absl::InvalidArgumentError(
        "bench: --batch and --optimizer are for GPUs, and this is a CPU's: leave them away, or "
        "name "
        "a GPU, as in --device=cuda:0");
  }
  return BenchTraining(options);
}

void PrintCpu(const json& result) {
  std::printf(
      "%s, %ld tokens per window: %.1f tokens/s per core on %d threads, %.1f GFLOP/s, "
      "%.0f%% of the sgemm peak of %.1f GFLOP/s\n",
      result.at("model").get<std::string>().c_str(), result.at("sequence_length").get<long>(),
      result.at("tokens_per_second_per_core").get<double>(), result.at("threads").get<int>(),
      result.at("gflops").get<double>(), 100 * result.at("peak_fraction").get<double>(),
      result.at("sgemm_peak_gflops").get<double>());
  for (const auto& [kind, milliseconds] : result.at("milliseconds_per_step").items()) {
    std::printf("  %-14s %9.1f ms per step\n", kind.c_str(), milliseconds.get<double>());
  }
}

void PrintGpu(const json& result) {
  const json& rates = result.at("rates");
  std::printf(
      "%s on %s, %ld tokens per window: %.0f tokens/s, %.1f TFLOP/s, %.0f%% of the roofline of "
      "%.0f tokens/s\n"
      "  attention by %s; measured: products %.1f TFLOP/s (%.1f%% apart before and after), "
      "mma.sync "
      "%.1f TFLOP/s, copy %.0f GB/s\n",
      result.at("model").get<std::string>().c_str(), result.at("device").get<std::string>().c_str(),
      result.at("sequence_length").get<long>(), result.at("tokens_per_second").get<double>(),
      result.at("tflops").get<double>(), 100 * result.at("roofline_fraction").get<double>(),
      result.at("roofline_tokens_per_second").get<double>(),
      result.at("attention").get<std::string>().c_str(), rates.at("gemm_tflops").get<double>(),
      100 * result.at("rates_spread").at("gemm_tflops").get<double>(),
      rates.at("mma_tflops").get<double>(), rates.at("copy_gb_per_s").get<double>());
  for (const json& kernel : result.at("kernels")) {
    std::printf("  %-46s %9.3f ms per step, %3.0f%% of its limit (%s)\n",
                kernel.at("name").get<std::string>().c_str(),
                kernel.at("milliseconds_per_step").get<double>(),
                100 * kernel.at("limit_fraction").get<double>(),
                kernel.at("limit").get<std::string>().c_str());
  }
}

}  // namespace

absl::Status RunBench() {
  const std::string optimizer = absl::GetFlag(FLAGS_optimizer);
  if (optimizer != "adamw" && optimizer != "muon") {
    return absl::InvalidArgumentError(
        absl::StrCat("bench: --optimizer must be adamw or muon; it is '", optimizer, "'"));
  }
  ASSIGN_OR_RETURN(DeviceChoice devices, DevicesFromFlags());
  ASSIGN_OR_RETURN(devices, ResolveDevices(devices, *FileSystem::Real()));
  BenchOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.sequence_length = absl::GetFlag(FLAGS_seq);
  options.micro_batch_sequences = absl::GetFlag(FLAGS_micro_batch);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.threads = absl::GetFlag(FLAGS_threads);
  const bool gpu = devices.kind == DeviceChoice::Kind::kCuda;
  ASSIGN_OR_RETURN(const json result, gpu ? BenchOnGpu(devices, options, absl::GetFlag(FLAGS_batch),
                                                       optimizer == "muon", *FileSystem::Real())
                                          : BenchOnCpu(options));
  if (absl::GetFlag(FLAGS_json)) {
    std::printf("%s\n", result.dump(2).c_str());
  } else {
    gpu ? PrintGpu(result) : PrintCpu(result);
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
