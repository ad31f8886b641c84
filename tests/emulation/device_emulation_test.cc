// The emulator shows what a GPU would hide. That it does what a GPU does, the tests of kernels and
// backends show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda_runtime.h"
#include "device_emulation.h"
#include "tests/emulation/emulator.h"

namespace causeway::emulation {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class DeviceEmulationTest : public ::testing::TestWithParam<Order> {
 protected:
  void SetUp() override { SetOrder(GetParam()); }
  void TearDown() override {
    SetOrder(Order::kForward);
    SetEager(false);
    SetMachine({});
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, DeviceEmulationTest,
                         ::testing::Values(Order::kForward, Order::kBackward, Order::kShuffled));

template <typename T>
T* OnDevice(const std::vector<T>& values) {
  T* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(T)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
            cudaSuccess);
  return memory;
}

template <typename T>
std::vector<T> FromDevice(const T* memory, size_t size) {
  std::vector<T> values(size);
  EXPECT_EQ(cudaMemcpy(values.data(), memory, size * sizeof(T), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return values;
}

TEST_P(DeviceEmulationTest, ACopyThatNobodyWaitsForIsNotThere) {
  float* const from = OnDevice(std::vector<float>(4, 1.0F));
  float* const to = OnDevice(std::vector<float>(4, 0.0F));
  LaunchKernel(dim3(1), dim3(32), 64, nullptr, [=] {
    auto* const shared = static_cast<float*>(DynamicShared());
    if (threadIdx.x == 0) CopyAsync(shared, from, 16, 16);
    __syncthreads();
    if (threadIdx.x < 4) to[threadIdx.x] = shared[threadIdx.x];
  });
  EXPECT_THAT(FromDevice(to, 4), Each(::testing::IsNan()));
  cudaFree(from);
  cudaFree(to);
}

TEST_P(DeviceEmulationTest, StreamsWaitForEventsAlone) {
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t ready = nullptr;
  ASSERT_EQ(cudaStreamCreate(&first), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&second), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&ready), cudaSuccess);
  std::vector<int> seen;
  Enqueue(first, [&] { seen.push_back(1); });
  cudaEventRecord(ready, first);
  Enqueue(first, [&] { seen.push_back(3); });
  cudaStreamWaitEvent(second, ready);
  Enqueue(second, [&] { seen.push_back(2); });
  EXPECT_TRUE(seen.empty());
  cudaStreamSynchronize(second);
  EXPECT_THAT(seen, ElementsAre(1, 2));  // Nothing has run that nobody waited for.
  cudaStreamSynchronize(first);
  EXPECT_THAT(seen, ElementsAre(1, 2, 3));
  cudaEventDestroy(ready);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
}

TEST_P(DeviceEmulationTest, CopiesBeyondAnAllocationAreRefused) {
  int* const memory = OnDevice(std::vector<int>(4, 7));
  int host[8] = {};
  EXPECT_EQ(cudaMemcpy(host, memory, 5 * sizeof(int), cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, memory, 4 * sizeof(int), cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  LaunchKernel(dim3(1), dim3(33), 0, nullptr, [] {});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  cudaFree(memory);
}

using DeviceEmulationDeathTest = DeviceEmulationTest;
INSTANTIATE_TEST_SUITE_P(Orders, DeviceEmulationDeathTest, ::testing::Values(Order::kForward));

TEST_P(DeviceEmulationDeathTest, ABarrierThatSomeLanesOfAShuffleMissIsSaid) {
  EXPECT_DEATH(
      {
        LaunchKernel(dim3(1), dim3(32), 0, nullptr, [] {
          if (threadIdx.x < 16) __syncwarp();
        });
        cudaDeviceSynchronize();
      },
      "waits for ever");
}

}  // namespace
}  // namespace causeway::emulation
