#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"

#include <algorithm>
#include <cmath>

#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {

double RoundToBf16(double value) {
  return static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(value))));
}

Doubles RoundToBf16(Doubles values) {
  for (double& value : values) value = RoundToBf16(value);
  return values;
}

Doubles RandomValues::Normal(int64_t size, double deviation, double mean) {
  Doubles values(static_cast<size_t>(size));
  for (double& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(engine_()) / 4294967296.0;
    value = RoundToBf16(mean + deviation * sum);
  }
  return values;
}

std::vector<int32_t> RandomValues::Integers(int64_t size, int32_t low, int32_t high) {
  std::vector<int32_t> values(static_cast<size_t>(size));
  for (int32_t& value : values) {
    value = low + static_cast<int32_t>(engine_() % static_cast<uint32_t>(high - low));
  }
  return values;
}

TestDevice::TestDevice() { EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess); }

TestDevice::~TestDevice() {
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  for (void* block : blocks_) EXPECT_EQ(cudaFree(block), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
}

void* TestDevice::AllocateBytes(size_t bytes) {
  void* block = nullptr;
  EXPECT_EQ(cudaMalloc(&block, bytes == 0 ? 1 : bytes), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(block, 0xff, bytes, stream_), cudaSuccess);
  blocks_.push_back(block);
  return block;
}

void TestDevice::Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, kind, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

__nv_bfloat16* TestDevice::UploadBf16(const Doubles& values) {
  std::vector<__nv_bfloat16> converted(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    converted[i] = __float2bfloat16_rn(static_cast<float>(values[i]));
  }
  return Upload(converted);
}

float* TestDevice::UploadFloat(const Doubles& values) { return Upload(As<float>(values)); }

Doubles TestDevice::Values(const __nv_bfloat16* data, int64_t size) {
  Doubles values;
  for (const __nv_bfloat16 value : Download(data, size)) {
    values.push_back(static_cast<double>(__bfloat162float(value)));
  }
  return values;
}

Doubles TestDevice::Values(const float* data, int64_t size) {
  Doubles values;
  for (const float value : Download(data, size)) values.push_back(static_cast<double>(value));
  return values;
}

std::vector<Doubles> Repeat(const std::function<std::vector<Doubles>(TestDevice&)>& run) {
  const auto once = [&] {
    TestDevice device;
    return run(device);
  };
  const std::vector<Doubles> first = once();
#ifdef CAUSEWAY_EMULATED_DEVICE
  emulation::SetOrder(emulation::Order::kBackward);
  EXPECT_EQ(once(), first) << "threads in backward order";
  emulation::SetOrder(emulation::Order::kShuffled, 1);
  EXPECT_EQ(once(), first) << "threads in a shuffled order";
  emulation::SetOrder(emulation::Order::kForward);
#else
  for (int i = 0; i < 3; ++i) EXPECT_EQ(once(), first) << "repetition " << i;
#endif
  return first;
}

void ExpectClose(const std::string& what, const Doubles& actual, const Doubles& oracle,
                 const Doubles& emulated, double tolerance) {
  ASSERT_EQ(actual.size(), oracle.size()) << what;
  ASSERT_EQ(emulated.size(), oracle.size()) << what;
  double largest = 0, scale = 0, squares = 0, emulated_largest = 0, emulated_squares = 0;
  size_t worst = 0;
  for (size_t i = 0; i < oracle.size(); ++i) {
    const double error = std::abs(actual[i] - oracle[i]);
    const double emulated_error = std::abs(emulated[i] - oracle[i]);
    if (!(error <= largest)) {
      largest = error;
      worst = i;
    }
    scale = std::max(scale, std::abs(oracle[i]));
    emulated_largest = std::max(emulated_largest, emulated_error);
    squares += error * error;
    emulated_squares += emulated_error * emulated_error;
  }
  const auto size = static_cast<double>(oracle.size());
  EXPECT_LE(largest, 1.5 * emulated_largest + tolerance * scale)
      << what << ": value " << worst << " of " << oracle.size() << " is " << actual[worst]
      << ", not " << oracle[worst];
  EXPECT_LE(std::sqrt(squares / size), 1.5 * std::sqrt(emulated_squares / size) + tolerance * scale)
      << what << ": root of the mean square error";
}

void ExpectCloseFloat(const std::string& what, const Doubles& actual, const Doubles& oracle,
                      double tolerance) {
  ExpectClose(what, actual, oracle, oracle, tolerance);
}

void ExpectCloseBf16(const std::string& what, const Doubles& actual, const Doubles& oracle) {
  ExpectClose(what, actual, oracle, RoundToBf16(oracle));
}

}  // namespace causeway::worker::cuda
