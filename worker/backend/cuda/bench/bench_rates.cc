#include "worker/backend/cuda/bench/bench_rates.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/backend/cuda/bench/bench_kernels.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/kernels/random_fill.h"

namespace causeway::worker::cuda {
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
