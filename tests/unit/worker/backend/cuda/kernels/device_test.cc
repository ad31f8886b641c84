// A worker's messages about GPUs that are missing, unfit, too small or lost.
#include "worker/backend/cuda/kernels/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file_system.h"

#ifdef CAUSEWAY_EMULATED_DEVICE
#include <device_emulation.h>

#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

TEST(DeviceDescriptionTest, EqualDevicesAreCounted) {
  EXPECT_EQ(DescribeDevices({{.name = "A"}, {.name = "A"}, {.name = "B"}}), "2 x A, B");
}

TEST(DeviceMemoryTest, StreamsEventsAndGraphsDoTheirWork) {
  ASSERT_TRUE(DiscoverDevices({0}, *FileSystem::Real()).ok());
  DeviceMemory memory;
  const auto value = memory.Allocate<int32_t>("counter", 1, "").value();
  EXPECT_EQ(memory.bytes(), sizeof(int32_t));
  const auto stream = Stream::Create().value();
  auto host = PinnedBuffer<int32_t>::Create(1).value();
  absl::StatusOr<Graph> graph = Graph::Record(stream.get(), [&] {
    return CheckCuda(cudaMemsetAsync(value, 1, sizeof(int32_t), stream.get()), "filling");
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_TRUE(graph->Start(stream.get()).ok());
  ASSERT_TRUE(CheckCuda(cudaMemcpyAsync(host.data(), value, sizeof(int32_t), cudaMemcpyDeviceToHost,
                                        stream.get()),
                        "copying")
                  .ok());
  auto done = Event::Create().value();
  ASSERT_TRUE(done.Record(stream.get()).ok());
  ASSERT_TRUE(done.Wait("the copy").ok());
  EXPECT_EQ(host[0], 0x01010101);
}

TEST(DeviceMemoryTest, AGraphWhoseRecordFailsIsNotKept) {
  const auto stream = Stream::Create().value();
  const absl::StatusOr<Graph> graph =
      Graph::Record(stream.get(), [] { return absl::InternalError("no such kernel"); });
  EXPECT_EQ(TextOf(graph.status()), "no such kernel");
  EXPECT_TRUE(stream.Wait("nothing").ok());  // The stream records no longer.
}

#ifdef CAUSEWAY_EMULATED_DEVICE

class DeviceTest : public ::testing::Test {
 protected:
  ~DeviceTest() override { emulation::SetMachine({}); }
};

TEST_F(DeviceTest, AMachineWithoutADriverIsToldWhatWasLookedForAndHowToGoOn) {
  emulation::SetMachine({.devices = 0, .driver = cudaErrorInsufficientDriver});
  const absl::Status status = DiscoverDevices({}, *FileSystem::Real()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(TextOf(status), AllOf(HasSubstr("no GPU can be used"),
                                    HasSubstr("libcuda.so.1 (not found, or too old"),
                                    HasSubstr("needs CUDA 13.0"), HasSubstr("/dev/nvidiactl"),
                                    HasSubstr("--gpus all"), HasSubstr("--device=cpu")));
}

TEST_F(DeviceTest, AMachineWithADriverAndNoDeviceIsToldSo) {
  emulation::SetMachine({.devices = 0});
  EXPECT_THAT(TextOf(DiscoverDevices({}, *FileSystem::Real()).status()),
              AllOf(HasSubstr("cudaErrorNoDevice"), HasSubstr("it speaks CUDA 13.0 at most")));
}

TEST_F(DeviceTest, AnArchitectureThatWasNotBuiltForIsNamedWithTheSettingThatBuildsIt) {
  emulation::SetMachine({.devices = 1, .major = 8, .minor = 9, .image = false});
  EXPECT_THAT(TextOf(DiscoverDevices({}, *FileSystem::Real()).status()),
              AllOf(HasSubstr("GPU 0 (Emulated device) has compute capability 8.9"),
                    HasSubstr("built for 80, 90, 100"),
                    HasSubstr("-DCAUSEWAY_CUDA_ARCHITECTURES=89"), HasSubstr("--device=cpu")));
}

TEST_F(DeviceTest, DevicesAreFoundByTheirNumbers) {
  emulation::SetMachine({.devices = 3});
  const auto devices = DiscoverDevices({2, 0}, *FileSystem::Real()).value();
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].index, 2);
  EXPECT_EQ(DiscoverDevices({}, *FileSystem::Real())->size(), 3U);
  EXPECT_THAT(TextOf(DiscoverDevices({3}, *FileSystem::Real()).status()),
              AllOf(HasSubstr("there is no GPU 3"), HasSubstr("this machine has 3")));
  EXPECT_THAT(TextOf(DiscoverDevices({1, 1}, *FileSystem::Real()).status()),
              HasSubstr("named twice"));
}

TEST_F(DeviceTest, DevicesThatAreOnlyListedAreNotUsed) {
  emulation::SetMachine({.devices = 3});
  const auto listed = ListDevices({}, *FileSystem::Real()).value();
  EXPECT_EQ(listed, (std::vector<int>{0, 1, 2}));
  EXPECT_THAT(TextOf(ListDevices({3}, *FileSystem::Real()).status()),
              HasSubstr("there is no GPU 3"));
  for (const int device : {0, 1, 2}) EXPECT_FALSE(emulation::HasContext(device)) << device;
  ASSERT_TRUE(DiscoverDevices({1}, *FileSystem::Real()).ok());
  EXPECT_FALSE(emulation::HasContext(0));
  EXPECT_TRUE(emulation::HasContext(1));
  EXPECT_FALSE(emulation::HasContext(2));
}

TEST_F(DeviceTest, MemoryThatDoesNotSufficeIsAccountedFor) {
  emulation::SetMachine({.devices = 1, .memory = 30'000'000});
  DeviceMemory memory;
  ASSERT_TRUE(memory.Allocate<float>("weights", 5'000'000, "").ok());
  const absl::Status status =
      memory.Allocate<float>("activations", 5'000'000, "train.micro_batch_sequences").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(TextOf(status),
              AllOf(HasSubstr("activations needs 0.02 GB, 0.01 GB of 0.03 GB are free"),
                    HasSubstr("train.micro_batch_sequences lowers it"),
                    HasSubstr("Allocated before: weights 0.02 GB")));
  EXPECT_TRUE(memory.Allocate<float>("activations", 1'000'000, "").ok());  // It goes on.
}

TEST_F(DeviceTest, ALostDeviceIsSaidAsSuch) {
  const auto stream = Stream::Create().value();
  emulation::FailAfterKernels(0, cudaErrorECCUncorrectable);
  emulation::LaunchKernel(dim3(1), dim3(32), 0, stream.get(), [] {});
  const absl::Status status = stream.Wait("training step 7");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(TextOf(status), AllOf(HasSubstr("training step 7: cudaErrorECCUncorrectable"),
                                    HasSubstr("start the worker again"), Not(HasSubstr("\n"))));
}

#endif

}  // namespace
}  // namespace causeway::worker::cuda
