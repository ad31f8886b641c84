#include "worker/backend/cuda/bench.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "common/base/thread_pool.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "worker/backend/cpu/bench.h"
#include "worker/backend/cuda/cuda_backend.h"

namespace causeway::worker::cuda {
namespace {

using nlohmann::json;

constexpr int kWarmUpSteps = 2;

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
  return BenchConfig(options.model, options.sequence_length, options.micro_batch_sequences, batch,
                     options.muon);
}

// By Recompute, and by KernelLimit.
constexpr const char* kRecomputeNames[] = {"none", "norms", "block"};
constexpr const char* kLimitNames[] = {"products", "mma.sync", "copy"};

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
  RETURN_IF_ERROR(CheckLaunches("a measurement"));
  ASSIGN_OR_RETURN(const double seconds, end.SecondsSince(begin));
  return std::max(kLeastSeconds, seconds / calls);
}

// Seconds of one call of `enqueue` on the stream: the median of a few samples, each of as many
// calls as last a millisecond or so. Warms up first, and waits.
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

// A GPU's rates, measured in the run that compares with them.
struct DeviceRates {
  // bf16 products of random values, per second, in bursts of a millisecond, as kernels are timed
  // alone. Over seconds a GPU lowers its clock by as much as its power and its neighbours make it:
  // 412 to 696 TFLOP/s on one H200, where bursts repeat.
  double gemm_flops = 0;
  double copy_bytes = 0;  // Read and written together, per second.
  double mma_flops = 0;   // The best that mma.sync gives, from registers, per second.
};

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

// Allocates, measures, and frees again.
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

// Where a step's time goes: how far each kernel and product is from what bounds it.
struct KernelTime {
  std::string name;
  KernelLimit limit = KernelLimit::kMemory;
  int64_t calls = 0;          // Per step.
  double flops = 0;           // Per call.
  double bytes = 0;           // Per call; 0 for products.
  double seconds = 0;         // Per call, alone.
  double traced_seconds = 0;  // All calls of a step.
  int64_t seen = 0;           // Calls of the present step.

  // Least time of a call in a step, where attention too could be done at the rate of the largest
  // products,
  double RooflineSeconds(const DeviceRates& rates) const {
    return limit == KernelLimit::kMemory ? bytes / rates.copy_bytes : flops / rates.gemm_flops;
  }
  // and alone: our own attention's is that of mma.sync.
  double LeastSeconds(const DeviceRates& rates) const {
    return limit == KernelLimit::kAttention ? flops / rates.mma_flops : RooflineSeconds(rates);
  }
};

// The time between two kernels, by the names of both.
struct Gap {
  std::string after, before;
  int64_t count = 0;
  double seconds = 0;
};

// Looks into steps in turn: the first is traced, with an event before and after each kernel. In the
// next each name's last call is timed alone, with whatever it adds to; kernels that work in place
// spoil what comes after them, and have a step of their own.
class KernelProbe final : public StepProbe {
 public:
  enum class Mode { kOff, kTrace, kTime, kTimeInPlace };
  void Begin(Mode mode) {
    mode_ = mode;
    for (KernelTime& time : times_) time.seen = 0;
  }
  bool is_active() const override { return mode_ != Mode::kOff; }

  absl::Status Enqueue(const StepKernel& kernel, const std::function<absl::Status()>& enqueue,
                       cudaStream_t stream) override {
    auto time = std::ranges::find(times_, kernel.name, &KernelTime::name);
    if (time == times_.end()) {
      time = times_.insert(time, {.name = std::string(kernel.name), .limit = kernel.limit});
    }
    ++time->seen;
    if (mode_ == Mode::kTrace) {
      time->calls = time->seen;
      time->flops += kernel.flops;
      time->bytes += kernel.bytes;
      Span span{.kernel = static_cast<size_t>(time - times_.begin()), .begin = {}, .end = {}};
      ASSIGN_OR_RETURN(span.begin, Event::Create(/*timing=*/true));
      ASSIGN_OR_RETURN(span.end, Event::Create(/*timing=*/true));
      RETURN_IF_ERROR(span.begin.Record(stream));
      RETURN_IF_ERROR(enqueue());
      RETURN_IF_ERROR(span.end.Record(stream));
      spans_.push_back(std::move(span));
      return absl::OkStatus();
    }
    const bool is_due = kernel.in_place == (mode_ == Mode::kTimeInPlace);
    if (!is_due || time->seen != time->calls) return enqueue();
    ASSIGN_OR_RETURN(const double seconds, MedianSeconds(enqueue, stream));
    // The mean size of a call is what counts.
    time->seconds = kernel.flops > 0 ? seconds * time->flops / kernel.flops
                                     : seconds * time->bytes / kernel.bytes;
    return absl::OkStatus();
  }

  // After a traced step.
  absl::Status ReadTrace() {
    for (size_t i = 0; i < spans_.size(); ++i) {
      KernelTime& time = times_[spans_[i].kernel];
      ASSIGN_OR_RETURN(const double seconds, spans_[i].end.SecondsSince(spans_[i].begin));
      time.traced_seconds += seconds;
      if (i == 0) continue;
      ASSIGN_OR_RETURN(const double idle, spans_[i].begin.SecondsSince(spans_[i - 1].end));
      AddGap(times_[spans_[i - 1].kernel].name, time.name, idle);
    }
    for (KernelTime& time : times_) {
      time.flops /= static_cast<double>(time.calls);
      time.bytes /= static_cast<double>(time.calls);
    }
    ASSIGN_OR_RETURN(traced_seconds_, spans_.back().end.SecondsSince(spans_.front().begin));
    spans_.clear();
    std::ranges::sort(gaps_, std::greater<>(), &Gap::seconds);
    return absl::OkStatus();
  }

  const std::vector<KernelTime>& times() const { return times_; }
  json Trace() const {
    constexpr size_t kTold = 10;
    double sum = 0;
    json told = json::array();
    for (const Gap& gap : gaps_) {
      sum += gap.seconds;
      if (told.size() == kTold) continue;
      told.push_back(json{{"after", gap.after},
                          {"before", gap.before},
                          {"count", gap.count},
                          {"milliseconds", 1e3 * gap.seconds}});
    }
    return json{{"seconds", traced_seconds_}, {"gap_seconds", sum}, {"gaps", std::move(told)}};
  }

 private:
  struct Span {
    size_t kernel = 0;  // In times_.
    Event begin, end;
  };
  void AddGap(const std::string& after, const std::string& before, double seconds) {
    auto gap = std::ranges::find_if(
        gaps_, [&](const Gap& known) { return known.after == after && known.before == before; });
    if (gap == gaps_.end()) gap = gaps_.insert(gap, {.after = after, .before = before});
    ++gap->count;
    gap->seconds += seconds;
  }

  Mode mode_ = Mode::kOff;
  std::vector<KernelTime> times_;  // In the order of a step.
  std::vector<Span> spans_;
  std::vector<Gap> gaps_;
  double traced_seconds_ = 0;
};

struct StepTimes {
  double seconds = 0;       // The median.
  std::vector<double> all;  // In order.
  std::string attention;
  Recompute recompute = Recompute::kNone;
  size_t memory_bytes = 0;
  std::vector<KernelTime> kernels;
  json trace;
};

absl::StatusOr<StepTimes> TimeSteps(const v1::RunConfig& config, const FragmentPlan& plan,
                                    const CudaBenchOptions& options) {
  CudaBackend::Options backend_options;
  backend_options.devices = {options.device};
  backend_options.make_gemm = options.make_gemm;
  backend_options.make_attention = options.make_attention;
  KernelProbe probe;
  backend_options.probe = &probe;
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaBackend> backend,
                   CudaBackend::Create(config, plan, backend_options));
  {
    ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    std::vector<float> parameters(static_cast<size_t>(plan.arena_size()));
    InitializeParameters(plan, /*seed=*/1, parameters, &pool);
    RETURN_IF_ERROR(backend->SetParameters(parameters));
  }
  const MicroBatchReader read = RandomTokens(config.model().vocabulary_size());
  std::vector<double> seconds;
  int step = 0;
  while (step < kWarmUpSteps + options.steps) {
    const double start = BenchNow();
    RETURN_IF_ERROR(backend->Step(++step, read).status());
    if (step > kWarmUpSteps) seconds.push_back(BenchNow() - start);
  }
  using Mode = KernelProbe::Mode;
  for (const Mode mode : {Mode::kTrace, Mode::kTime, Mode::kTimeInPlace}) {
    probe.Begin(mode);
    const absl::Status status = backend->Step(++step, read).status();
    // A gradient that is not finite: kernels have worked on their own results.
    if (!absl::IsOutOfRange(status)) RETURN_IF_ERROR(status);
    if (mode == Mode::kTrace) RETURN_IF_ERROR(probe.ReadTrace());
  }
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return StepTimes{
      sorted[sorted.size() / 2], std::move(seconds), backend->attention(), backend->recompute(),
      backend->memory_bytes(),   probe.times(),      probe.Trace()};
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
      {"traced_milliseconds", 1e3 * kernel.traced_seconds},
      {"limit", kLimitNames[static_cast<size_t>(kernel.limit)]},
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
  ASSIGN_OR_RETURN(const StepTimes step, TimeSteps(config, plan, options));
  ASSIGN_OR_RETURN(const DeviceRates after, RatesNow(options));
  const DeviceRates rates = {.gemm_flops = std::max(before.gemm_flops, after.gemm_flops),
                             .copy_bytes = std::max(before.copy_bytes, after.copy_bytes),
                             .mma_flops = std::max(before.mma_flops, after.mma_flops)};

  double roofline_seconds = 0;
  double kernel_seconds = 0;
  json described = json::array();
  for (const KernelTime& kernel : step.kernels) {
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
              {"recompute", kRecomputeNames[static_cast<size_t>(step.recompute)]},
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
              {"kernels", std::move(described)},
              {"trace", step.trace}};
}

}  // namespace causeway::worker::cuda
