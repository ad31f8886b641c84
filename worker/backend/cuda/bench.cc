#include "worker/backend/cuda/bench.h"

#include <google/protobuf/util/json_util.h>

#include <chrono>

#include "absl/strings/match.h"
#include "common/base/thread_pool.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "worker/backend/cpu/bench.h"

namespace causeway::worker::cuda {
namespace {

using nlohmann::json;

constexpr int kWarmUpSteps = 2;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<v1::RunConfig> MakeConfig(const CudaBenchOptions& options) {
  const int batch =
      options.batch_sequences == 0 ? options.micro_batch_sequences : options.batch_sequences;
  if (options.micro_batch_sequences < 1 || batch % options.micro_batch_sequences != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bench: --batch must be a multiple of --micro_batch = ", options.micro_batch_sequences,
        "; it is ", batch));
  }
  if (options.steps < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("bench: --steps must be at least 1; it is ", options.steps));
  }
  v1::RunConfig config;
  config.mutable_model()->set_preset(options.model);
  if (options.sequence_length != 0) {
    config.mutable_model()->set_sequence_length(options.sequence_length);
  }
  config.mutable_train()->set_batch_sequences(batch);
  config.mutable_train()->set_micro_batch_sequences(options.micro_batch_sequences);
  if (options.muon) config.mutable_train()->set_optimizer(v1::TrainConfig::MUON);
  RETURN_IF_ERROR(CompleteRunConfig(config).status());
  return config;
}

const char* RecomputeName(Recompute level) {
  switch (level) {
    case Recompute::kNone:
      return "none";
    case Recompute::kNorms:
      return "norms";
    case Recompute::kBlocks:
      return "block";
  }
  return "";
}

const char* LimitName(KernelLimit limit) {
  switch (limit) {
    case KernelLimit::kProducts:
      return "products";
    case KernelLimit::kAttention:
      return "mma.sync";
    case KernelLimit::kMemory:
      return "copy";
  }
  return "";
}

struct StepTimes {
  double seconds = 0;       // The median.
  std::vector<double> all;  // In order.
  std::string attention;
  Recompute recompute = Recompute::kNone;
  size_t memory_bytes = 0;
};

absl::StatusOr<StepTimes> TimeSteps(const v1::RunConfig& config, const FragmentPlan& plan,
                                    const CudaBenchOptions& options) {
  CudaBackend::Options backend_options;
  backend_options.devices = {options.device};
  backend_options.make_gemm = options.make_gemm;
  backend_options.make_attention = options.make_attention;
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaBackend> backend,
                   CudaBackend::Create(config, plan, backend_options));
  {
    ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    std::vector<float> parameters(static_cast<size_t>(plan.arena_size()));
    InitializeParameters(plan, /*seed=*/1, parameters, &pool);
    RETURN_IF_ERROR(backend->SetParameters(parameters));
  }
  // A linear congruential generator: any tokens will do.
  uint32_t state = 1;
  const auto vocabulary = static_cast<uint32_t>(config.model().vocabulary_size());
  const auto read = [&](int64_t, const MicroBatch& out) {
    for (const std::span<int32_t> tokens : {out.inputs, out.targets}) {
      for (int32_t& token : tokens) {
        state = state * 1664525U + 1013904223U;
        token = static_cast<int32_t>((state >> 8) % vocabulary);
      }
    }
    return absl::OkStatus();
  };
  std::vector<double> seconds;
  for (int step = 1; step <= kWarmUpSteps + options.steps; ++step) {
    const double start = Now();
    RETURN_IF_ERROR(backend->Step(step, read).status());
    if (step > kWarmUpSteps) seconds.push_back(Now() - start);
  }
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return StepTimes{sorted[sorted.size() / 2], std::move(seconds), backend->attention(),
                   backend->recompute(), backend->memory_bytes()};
}

// Rates of the device, with all memory given back.
absl::StatusOr<DeviceRates> RatesNow(const CudaBenchOptions& options) {
  DeviceMemory memory;
  ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  ASSIGN_OR_RETURN(const std::unique_ptr<Gemm> gemm, options.make_gemm(options.device, &memory));
  gemm->SetTuning(true);
  return MeasureRates(options.rates, options.device.multiprocessors, *gemm, stream.get());
}

double Spread(double before, double after) {
  return std::abs(before - after) / std::max(before, after);
}

json DescribeKernel(const KernelTime& kernel, const DeviceRates& rates) {
  json result = {
      {"name", kernel.name},
      {"calls_per_step", kernel.calls},
      {"microseconds", 1e6 * kernel.seconds},
      {"milliseconds_per_step", 1e3 * kernel.seconds * static_cast<double>(kernel.calls)},
      {"limit", LimitName(kernel.limit)},
      {"limit_fraction", kernel.LeastSeconds(rates) / kernel.seconds}};
  if (kernel.flops > 0) result["tflops"] = 1e-12 * kernel.flops / kernel.seconds;
  if (kernel.bytes > 0) result["gb_per_s"] = 1e-9 * kernel.bytes / kernel.seconds;
  return result;
}

absl::StatusOr<json> ModelAsJson(const v1::ModelConfig& model) {
  google::protobuf::util::JsonPrintOptions how;
  how.always_print_primitive_fields = true;
  how.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(model, &text, how).ok()) {
    return absl::InternalError("the model's configuration cannot be written as JSON");
  }
  return json::parse(text);
}

}  // namespace

double DatasheetFlops(const std::string& device) {
  // The first that is part of the name.
  constexpr std::pair<const char*, double> kPeaks[] = {{"H100 PCIe", 756e12}, {"H100 NVL", 835e12},
                                                       {"H100", 989e12},      {"H200", 989e12},
                                                       {"A100", 312e12},      {"B200", 2250e12}};
  for (const auto& [name, flops] : kPeaks) {
    if (absl::StrContains(device, name)) return flops;
  }
  return 0;
}

absl::StatusOr<json> BenchTraining(const CudaBenchOptions& options) {
  ASSIGN_OR_RETURN(const v1::RunConfig config, MakeConfig(options));
  ASSIGN_OR_RETURN(const FragmentPlan plan, FragmentPlan::Create(config));
  ASSIGN_OR_RETURN(json shape, ModelAsJson(config.model()));
  RETURN_IF_ERROR(UseDevice(options.device.index));

  ASSIGN_OR_RETURN(const DeviceRates before, RatesNow(options));
  std::vector<KernelTime> kernels;
  {
    DeviceMemory memory;
    ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
    ASSIGN_OR_RETURN(const std::unique_ptr<Gemm> gemm, options.make_gemm(options.device, &memory));
    gemm->SetTuning(true);
    std::unique_ptr<AttentionProvider> attention = std::make_unique<OwnAttention>();
    if (options.make_attention != nullptr) {
      ASSIGN_OR_RETURN(
          attention,
          options.make_attention(
              options.device, AttentionOf(config.model(), config.train().micro_batch_sequences()),
              &memory));
    }
    ASSIGN_OR_RETURN(
        kernels, TimeStepKernels(config, plan, options.device, *gemm, *attention, stream.get()));
  }
  ASSIGN_OR_RETURN(const StepTimes step, TimeSteps(config, plan, options));
  ASSIGN_OR_RETURN(const DeviceRates after, RatesNow(options));
  const DeviceRates rates = {.gemm_flops = std::max(before.gemm_flops, after.gemm_flops),
                             .copy_bytes = std::max(before.copy_bytes, after.copy_bytes),
                             .mma_flops = std::max(before.mma_flops, after.mma_flops)};

  double roofline_seconds = 0;
  double kernel_seconds = 0;
  json described = json::array();
  for (const KernelTime& kernel : kernels) {
    const auto calls = static_cast<double>(kernel.calls);
    roofline_seconds += calls * kernel.RooflineSeconds(rates);
    kernel_seconds += calls * kernel.seconds;
    described.push_back(DescribeKernel(kernel, rates));
  }
  const double tokens =
      static_cast<double>(config.train().batch_sequences()) * config.model().sequence_length();
  const double tokens_per_second = tokens / step.seconds;
  const double flops_per_token = FlopsPerToken(config.model(), plan);
  const double flops = flops_per_token * tokens_per_second;
  const double peak = DatasheetFlops(options.device.name);
  return json{{"model", options.model},
              {"shape", std::move(shape)},
              {"device", options.device.name},
              {"parameters", plan.parameters()},
              {"sequence_length", config.model().sequence_length()},
              {"micro_batch_sequences", config.train().micro_batch_sequences()},
              {"batch_sequences", config.train().batch_sequences()},
              {"steps", options.steps},
              {"optimizer", options.muon ? "muon" : "adamw"},
              {"attention", step.attention},
              {"recompute", RecomputeName(step.recompute)},
              {"memory_gb", 1e-9 * static_cast<double>(step.memory_bytes)},
              {"flops_per_token", flops_per_token},
              {"seconds_per_step", step.seconds},
              {"step_seconds", step.all},
              {"tokens_per_second", tokens_per_second},
              {"tflops", 1e-12 * flops},
              {"mfu", peak > 0 ? json(flops / peak) : json()},
              {"rates",
               {{"gemm_tflops", 1e-12 * rates.gemm_flops},
                {"copy_gb_per_s", 1e-9 * rates.copy_bytes},
                {"mma_tflops", 1e-12 * rates.mma_flops}}},
              {"rates_spread",
               {{"gemm_tflops", Spread(before.gemm_flops, after.gemm_flops)},
                {"copy_gb_per_s", Spread(before.copy_bytes, after.copy_bytes)},
                {"mma_tflops", Spread(before.mma_flops, after.mma_flops)}}},
              {"roofline_seconds_per_step", roofline_seconds},
              {"roofline_tokens_per_second", tokens / roofline_seconds},
              {"roofline_fraction", roofline_seconds / step.seconds},
              {"kernels_fraction", kernel_seconds / step.seconds},
              {"kernels", std::move(described)}};
}

namespace {

constexpr int kSamples = 7;
constexpr double kSampleSeconds = 1e-3;
constexpr double kMostCalls = 64;
// For an emulated device, whose clock stands still.
constexpr double kLeastSeconds = 1e-9;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr char kRatesArena[] = "measuring the device";

absl::StatusOr<double> Seconds(const std::function<absl::Status()>& enqueue, int calls,
                               const Event& begin, const Event& end, cudaStream_t stream) {
  RETURN_IF_ERROR(begin.Record(stream));
  for (int call = 0; call < calls; ++call) RETURN_IF_ERROR(enqueue());
  RETURN_IF_ERROR(end.Record(stream));
  RETURN_IF_ERROR(end.Wait("a measurement"));
  RETURN_IF_ERROR(CheckLaunches("a measurement"));
  float milliseconds = 0;
  RETURN_IF_ERROR(CheckCuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()),
                            "reading the time between events"));
  return std::max(kLeastSeconds, 1e-3 * static_cast<double>(milliseconds) / calls);
}

absl::StatusOr<double> GemmSeconds(int64_t size, Gemm& gemm, cudaStream_t stream) {
  DeviceMemory memory;
  ASSIGN_OR_RETURN(__nv_bfloat16* const a,
                   memory.Allocate<__nv_bfloat16>(kRatesArena, 2 * size * size, ""));
  ASSIGN_OR_RETURN(__nv_bfloat16* const d,
                   memory.Allocate<__nv_bfloat16>(kRatesArena, size * size, ""));
  FillRandom(2 * size * size, 1, 1.0F, a, stream);
  GemmCall call;
  call.m = call.n = call.k = size;
  call.a = {.data = a, .stride = size};
  call.b = {.data = a + size * size, .stride = size, .transpose = true};
  call.d = d;
  call.d_stride = size;
  return MedianSeconds([&] { return gemm.Run(call, stream); }, stream);
}

absl::StatusOr<double> CopySeconds(int64_t bytes, cudaStream_t stream) {
  DeviceMemory memory;
  const auto values = static_cast<int64_t>(bytes / sizeof(float));
  ASSIGN_OR_RETURN(float* const from, memory.Allocate<float>(kRatesArena, values, ""));
  ASSIGN_OR_RETURN(float* const to, memory.Allocate<float>(kRatesArena, values, ""));
  FillRandom(values, 2, 1.0F, from, stream);
  return MedianSeconds(
      [&] {
        CopyBytes(bytes, from, to, stream);
        return absl::OkStatus();
      },
      stream);
}

}  // namespace

absl::StatusOr<double> MedianSeconds(const std::function<absl::Status()>& enqueue,
                                     cudaStream_t stream) {
  ASSIGN_OR_RETURN(const Event begin, Event::Create(/*timing=*/true));
  ASSIGN_OR_RETURN(const Event end, Event::Create(/*timing=*/true));
  RETURN_IF_ERROR(Seconds(enqueue, 1, begin, end, stream).status());
  ASSIGN_OR_RETURN(const double once, Seconds(enqueue, 2, begin, end, stream));
  const int calls = static_cast<int>(std::clamp(std::ceil(kSampleSeconds / once), 1.0, kMostCalls));
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    ASSIGN_OR_RETURN(const double seconds, Seconds(enqueue, calls, begin, end, stream));
    samples.push_back(seconds);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

absl::StatusOr<DeviceRates> MeasureRates(const RateSizes& sizes, int multiprocessors, Gemm& gemm,
                                         cudaStream_t stream) {
  DeviceRates rates;
  ASSIGN_OR_RETURN(const double gemm_seconds, GemmSeconds(sizes.product, gemm, stream));
  const auto product = static_cast<double>(sizes.product);
  rates.gemm_flops = 2 * product * product * product / gemm_seconds;
  ASSIGN_OR_RETURN(const double copy_seconds, CopySeconds(sizes.copy_bytes, stream));
  rates.copy_bytes = 2 * static_cast<double>(sizes.copy_bytes) / copy_seconds;
  DeviceMemory memory;
  const int blocks = multiprocessors * kBlocksPerMultiprocessor;
  ASSIGN_OR_RETURN(float* const sink, memory.Allocate<float>(kRatesArena, blocks, ""));
  int64_t operations = 0;
  ASSIGN_OR_RETURN(const double mma_seconds, MedianSeconds(
                                                 [&] {
                                                   operations = MultiplyInRegisters(
                                                       blocks, sizes.mma_iterations, sink, stream);
                                                   return absl::OkStatus();
                                                 },
                                                 stream));
  rates.mma_flops = static_cast<double>(operations) / mma_seconds;
  return rates;
}

}  // namespace causeway::worker::cuda
