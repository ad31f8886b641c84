// The emulator does what a GPU does, as far as tests rely on it, and shows what a GPU would hide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <thread>
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

// Every thread writes, all meet, every thread reads its neighbour's.
void Rotate(int* values) {
  __shared__ int shared[64];
  const unsigned next = (threadIdx.x + 1) % blockDim.x;
  shared[threadIdx.x] = values[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  values[blockIdx.x * blockDim.x + threadIdx.x] = shared[next];
}

TEST_P(DeviceEmulationTest, ABarrierLetsEveryThreadSeeWhatTheOthersWrote) {
  std::vector<int> values(128);
  std::iota(values.begin(), values.end(), 0);
  int* const memory = OnDevice(values);
  LaunchKernel(dim3(2), dim3(64), 0, nullptr, [=] { Rotate(memory); });
  const std::vector<int> rotated = FromDevice(memory, 128);
  for (int i = 0; i < 128; ++i)
    EXPECT_EQ(rotated[static_cast<size_t>(i)], i / 64 * 64 + (i + 1) % 64);
  cudaFree(memory);
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

TEST_P(DeviceEmulationTest, AGraphRunsWhatWasCapturedOnBothStreams) {
  cudaStream_t stream = nullptr, side = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  cudaStreamCreate(&stream);
  cudaStreamCreate(&side);
  cudaEventCreate(&fork);
  cudaEventCreate(&join);
  int runs = 0;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaEventRecord(fork, stream);
  cudaStreamWaitEvent(side, fork);
  Enqueue(side, [&] { runs += 1; });
  cudaEventRecord(join, side);
  cudaStreamWaitEvent(stream, join);
  Enqueue(stream, [&] { runs += 10; });
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(runs, 0);
  cudaGraphLaunch(exec, stream);
  cudaGraphLaunch(exec, stream);
  cudaStreamSynchronize(stream);
  EXPECT_EQ(runs, 22);
  cudaGraphExecDestroy(exec);
  cudaEventDestroy(fork);
  cudaEventDestroy(join);
  cudaStreamDestroy(stream);
  cudaStreamDestroy(side);
}

TEST_P(DeviceEmulationTest, DevicesRunBesideEachOtherFromThreadsOfTheirOwn) {
  SetMachine({.devices = 3});
  std::vector<std::vector<int>> results(3);
  std::vector<std::thread> threads;
  for (int device = 0; device < 3; ++device) {
    threads.emplace_back([&results, device] {
      ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
      int* const memory = OnDevice(std::vector<int>(64, device));
      for (int i = 0; i < 20; ++i) {
        LaunchKernel(dim3(1), dim3(64), 0, nullptr, [=] { Rotate(memory); });
      }
      results[static_cast<size_t>(device)] = FromDevice(memory, 64);
      cudaFree(memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int device = 0; device < 3; ++device)
    EXPECT_THAT(results[static_cast<size_t>(device)], Each(device));
}

TEST_P(DeviceEmulationTest, MemoryEndsAndALostDeviceAnswersSo) {
  SetMachine({.devices = 1, .memory = 1000});
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1001), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&memory, 900), cudaSuccess);
  EXPECT_EQ(AllocatedBytes(0), 900U);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  FailAfterKernels(1, cudaErrorLaunchFailure);
  LaunchKernel(dim3(1), dim3(32), 0, nullptr, [] {});
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  LaunchKernel(dim3(1), dim3(32), 0, nullptr, [] {});
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemset(memory, 0, 4), cudaErrorLaunchFailure);
  cudaFree(memory);
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
