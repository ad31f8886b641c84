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
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/backend/cpu/kernels.h"

namespace causeway::worker {
namespace {

constexpr int64_t kPeakSize = 2048;
constexpr int kPeakRuns = 3;
constexpr int64_t kSliceValues = 64 * 1024;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of a few runs of `products` products at once, in GFLOP/s.
double MeasurePeak(ThreadPool& pool, int products) {
  const auto values = static_cast<size_t>(kPeakSize * kPeakSize);
  std::vector<AlignedVector<float>> operands(static_cast<size_t>(3 * products),
                                             AlignedVector<float>(values, 0.5F));
  double best = 0;
  for (int run = 0; run < kPeakRuns; ++run) {
    const double start = Now();
    pool.ParallelFor(products, [&](int64_t task) {
      AlignedVector<float>* const abc = &operands[static_cast<size_t>(3 * task)];
      GemmTile<float>(false, false, kPeakSize, kPeakSize, kPeakSize, 1.0F, abc[0].data(), kPeakSize,
                      abc[1].data(), kPeakSize, 0.0F, abc[2].data(), kPeakSize);
    });
    const double flops = 2.0 * kPeakSize * kPeakSize * kPeakSize * products;
    best = std::max(best, flops / (Now() - start) * 1e-9);
  }
  return best;
}

absl::Status CheckRange(const char* name, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bench: ", name, " must be ", low, " to ", high, ", not ", value));
}

// One model with all that a step needs.
class Trainer {
 public:
  Trainer(const v1::RunConfig& config, const FragmentPlan& plan, ThreadPool* pool)
      : pool_(pool),
        transformer_(config.model(), plan, config.train().micro_batch_sequences(), pool),
        parameters_(static_cast<size_t>(plan.arena_size())),
        gradients_(parameters_.size()),
        m_(parameters_.size()),
        v_(parameters_.size()),
        tokens_(static_cast<size_t>(config.train().micro_batch_sequences()) *
                    static_cast<size_t>(config.model().sequence_length()) +
                1) {
    InitializeParameters(plan, /*seed=*/1, parameters_);
    // A linear congruential generator: any tokens will do.
    uint32_t state = 1;
    for (int32_t& token : tokens_) {
      state = state * 1664525U + 1013904223U;
      token = static_cast<int32_t>((state >> 8) %
                                   static_cast<uint32_t>(config.model().vocabulary_size()));
    }
  }

  void Step(int64_t step) {
    const std::span<const int32_t> tokens(tokens_);
    transformer_.ForwardBackward(parameters_, tokens.first(tokens.size() - 1), tokens.subspan(1),
                                 1.0F, /*accumulate=*/false, gradients_);
    const double start = Now();
    const AdamWStep<float> adamw(1e-4, 0.9, 0.95, 1e-8, step);
    const auto size = static_cast<int64_t>(parameters_.size());
    pool_->ParallelFor((size + kSliceValues - 1) / kSliceValues, [&](int64_t task) {
      const int64_t at = task * kSliceValues;
      GetKernels<float>().adamw(adamw, 0.1F, 1.0F, gradients_.data() + at,
                                std::min(kSliceValues, size - at), parameters_.data() + at,
                                m_.data() + at, v_.data() + at);
    });
    optimizer_seconds_ += Now() - start;
  }

  void ResetTimes() {
    transformer_.ResetKernelSeconds();
    optimizer_seconds_ = 0;
  }
  const KernelSeconds& kernel_seconds() const { return transformer_.kernel_seconds(); }
  double optimizer_seconds() const { return optimizer_seconds_; }

 private:
  ThreadPool* const pool_;
  CpuTransformer<float> transformer_;
  AlignedVector<float> parameters_, gradients_, m_, v_;
  std::vector<int32_t> tokens_;
  double optimizer_seconds_ = 0;
};

}  // namespace

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
  v1::RunConfig config;
  config.mutable_model()->set_preset(options.model);
  if (options.sequence_length != 0) {
    config.mutable_model()->set_sequence_length(options.sequence_length);
  }
  config.mutable_train()->set_batch_sequences(options.micro_batch_sequences);
  RETURN_IF_ERROR(CompleteRunConfig(config).status());
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));

  ThreadPool pool(threads);
  RETURN_IF_ERROR(pool.started());
  double peak_one = MeasurePeak(pool, 1);
  double peak_all = MeasurePeak(pool, threads);
  Trainer trainer(config, plan, &pool);
  trainer.Step(1);
  trainer.ResetTimes();
  std::vector<double> seconds;
  for (int step = 0; step < options.steps; ++step) {
    const double start = Now();
    trainer.Step(step + 2);
    seconds.push_back(Now() - start);
  }
  peak_one = std::max(peak_one, MeasurePeak(pool, 1));
  peak_all = std::max(peak_all, MeasurePeak(pool, threads));

  const double per_step = 1e3 / options.steps;
  nlohmann::json breakdown;
  double other = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  for (size_t kind = 0; kind < kKernelKindNames.size(); ++kind) {
    breakdown[kKernelKindNames[kind]] = trainer.kernel_seconds()[kind] * per_step;
    other -= trainer.kernel_seconds()[kind];
  }
  breakdown["optimizer"] = trainer.optimizer_seconds() * per_step;
  breakdown["other"] = (other - trainer.optimizer_seconds()) * per_step;

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
