#include "worker/backend/cpu/bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "hwy/highway.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/kernels.h"

namespace causeway::worker {
namespace {

constexpr int64_t kPeakSize = 2048;
constexpr int kPeakRuns = 3;

// The best of a few runs of `products` products at once, in GFLOP/s.
double MeasurePeak(ThreadPool& pool, int products) {
  const auto values = static_cast<size_t>(kPeakSize * kPeakSize);
  std::vector<AlignedVector<float>> operands(static_cast<size_t>(3 * products),
                                             AlignedVector<float>(values, 0.5F));
  double best = 0;
  for (int run = 0; run < kPeakRuns; ++run) {
    const double start = BenchNow();
    pool.ParallelFor(products, [&](int64_t task) {
      AlignedVector<float>* const abc = &operands[static_cast<size_t>(3 * task)];
      GemmTile<float>(false, false, kPeakSize, kPeakSize, kPeakSize, 1.0F, abc[0].data(), kPeakSize,
                      abc[1].data(), kPeakSize, 0.0F, abc[2].data(), kPeakSize);
    });
    const double flops = 2.0 * kPeakSize * kPeakSize * kPeakSize * products;
    best = std::max(best, flops / (BenchNow() - start) * 1e-9);
  }
  return best;
}

absl::Status CheckRange(const char* name, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bench: ", name, " must be ", low, " to ", high, ", not ", value));
}

}  // namespace

double BenchNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<v1::RunConfig> BenchConfig(const std::string& model, int sequence_length,
                                          int micro_batch, int batch, bool muon) {
  v1::RunConfig config;
  config.mutable_model()->set_preset(model);
  if (sequence_length != 0) config.mutable_model()->set_sequence_length(sequence_length);
  config.mutable_train()->set_batch_sequences(batch);
  config.mutable_train()->set_micro_batch_sequences(micro_batch);
  if (muon) config.mutable_train()->set_optimizer(v1::TrainConfig::MUON);
  RETURN_IF_ERROR(CompleteRunConfig(config).status());
  return config;
}

// A linear congruential generator: any tokens will do.
MicroBatchReader RandomTokens(int vocabulary) {
  return [vocabulary, state = uint32_t{1}](int64_t, const MicroBatch& out) mutable {
    for (const std::span<int32_t> tokens : {out.inputs, out.targets}) {
      for (int32_t& token : tokens) {
        state = state * 1664525U + 1013904223U;
        token = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocabulary));
      }
    }
    return absl::OkStatus();
  };
}

double FlopsPerToken(const v1::ModelConfig& model, const FragmentPlan& plan) {
  double matrix_values = 0;
  for (const PlacedTensor& tensor : plan.tensors()) {
    const bool looked_up = tensor.info.role == TensorRole::kPositions ||
                           (tensor.info.role == TensorRole::kEmbedding && model.untied_head());
    if (tensor.info.is_matrix() && !looked_up) {
      matrix_values += static_cast<double>(tensor.info.size());
    }
  }
  return 6 * matrix_values +
         6.0 * model.layers() * model.heads() * model.head_dim() * model.sequence_length();
}

double MeasureMatrixRate(int threads) {
  ThreadPool pool(threads);
  return 1e9 * MeasurePeak(pool, threads);
}

std::string VectorInstructions() {
  // The best target is the lowest bit.
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

absl::StatusOr<nlohmann::json> BenchTraining(const BenchOptions& options) {
  ASSIGN_OR_RETURN(const int threads, ThreadsFor(options.threads));
  RETURN_IF_ERROR(CheckRange("steps", options.steps, 1, 100000));
  RETURN_IF_ERROR(CheckRange("micro_batch_sequences", options.micro_batch_sequences, 1, 4096));
  ASSIGN_OR_RETURN(
      const v1::RunConfig config,
      BenchConfig(options.model, options.sequence_length, options.micro_batch_sequences,
                  options.micro_batch_sequences, /*muon=*/false));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));

  ThreadPool pool(threads);
  RETURN_IF_ERROR(pool.started());
  double peak_one = MeasurePeak(pool, 1);
  double peak_all = MeasurePeak(pool, threads);
  CpuBackend backend(config, plan, &pool);
  std::vector<float> parameters(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, /*seed=*/1, parameters, &pool);
  RETURN_IF_ERROR(backend.SetParameters(parameters));
  const MicroBatchReader read = RandomTokens(config.model().vocabulary_size());
  RETURN_IF_ERROR(backend.Step(1, read).status());
  const KernelSeconds before = backend.kernel_seconds();
  std::vector<double> seconds;
  for (int step = 0; step < options.steps; ++step) {
    const double start = BenchNow();
    RETURN_IF_ERROR(backend.Step(step + 2, read).status());
    seconds.push_back(BenchNow() - start);
  }
  peak_one = std::max(peak_one, MeasurePeak(pool, 1));
  peak_all = std::max(peak_all, MeasurePeak(pool, threads));

  const double per_step = 1e3 / options.steps;
  nlohmann::json breakdown;
  double other = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  for (size_t kind = 0; kind < kKernelKindNames.size(); ++kind) {
    const double spent = backend.kernel_seconds()[kind] - before[kind];
    breakdown[kKernelKindNames[kind]] = spent * per_step;
    other -= spent;
  }
  breakdown["other"] = other * per_step;

  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double tokens_per_second = static_cast<double>(options.micro_batch_sequences) *
                                   config.model().sequence_length() / median;
  const double flops_per_token = FlopsPerToken(config.model(), plan);
  const double gflops = tokens_per_second * flops_per_token * 1e-9;
  return nlohmann::json{
      {"model", options.model},
      {"parameters", plan.parameters()},
      {"sequence_length", config.model().sequence_length()},
      {"micro_batch_sequences", options.micro_batch_sequences},
      {"steps", options.steps},
      {"threads", threads},
      {"flops_per_token", flops_per_token},
      {"seconds_per_step", median},
      {"tokens_per_second", tokens_per_second},
      {"tokens_per_second_per_core", tokens_per_second / threads},
      {"gflops", gflops},
      {"sgemm_peak_gflops", peak_all},
      {"sgemm_peak_gflops_per_core", peak_one},
      {"peak_fraction", gflops / peak_all},
      {"milliseconds_per_step", breakdown},
  };
}

}  // namespace causeway::worker
