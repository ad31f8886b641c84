// Attention by cuDNN: that it is refused where it is not installed, what it plans for GPUs that are
// only described, and, on a GPU, that its numbers and bits are those that are wanted of our own.
#include "worker/backend/cuda/cudnn.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/backend/cuda/kernels/attention_reference.h"
#include "worker/backend/cuda/cudnn_graphs.h"

namespace causeway::worker::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Before the library is open.
TEST(CudnnLibraryTest, ALibraryThatIsMissingIsNamedWithWhatToInstall) {
  CudnnNames names = CudnnNames::Default();
  names.cudnn = {"libabsent.so.1", "/nowhere/libabsent.so.1"};
  EXPECT_THAT(OpenCudnn(names),
              StatusIs(kFailedPrecondition,
                       AllOf(HasSubstr("libabsent.so.1"), HasSubstr("/nowhere/libabsent.so.1"),
                             HasSubstr("install cuDNN"), HasSubstr("LD_LIBRARY_PATH"))));
}

TEST(CudnnLibraryTest, ALibraryOfAnotherKindIsRefused) {
  CudnnNames names = CudnnNames::Default();
  names.cudnn = {"libm.so.6"};
  EXPECT_THAT(OpenCudnn(names), StatusIs(kFailedPrecondition, AllOf(HasSubstr("libm.so.6"),
                                                                    HasSubstr("another library"))));
}

// cuDNN's plans for a GPU that it is only told of. It looks for the driver all the same: where
// there is none, the toolkit's stub of it will do.
class CudnnPlansTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) {
      dlopen("/usr/local/cuda/lib64/stubs/libcuda.so", RTLD_NOW);
    }
  }
  absl::Status PlanFor(int capability, int multiprocessors, const AttentionShape& shape,
                       bool deterministic = true) {
    const std::string description = absl::StrCat(
        R"({"deviceVer": )", 10 * capability, R"(, "driverVer": 13000, "cudaDeviceId": 0,
        "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536, "multiProcessorCount": )",
        multiprocessors, R"(, "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": )",
        capability == 80 ? 166912 : 232448, R"(, "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
        "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "l2CacheSize": 52428800,
        "totalGlobalMem": 85017493504, "deviceName": "described"})");
    const absl::Status opened = OpenCudnn();
    if (!opened.ok()) return opened;
    auto properties = std::make_shared<cudnn_frontend::DeviceProperties>();
    const absl::Status known = CatchCudnn("describing a GPU", [&] {
      return CheckCudnn(
          properties->deserialize(std::vector<uint8_t>(description.begin(), description.end())),
          "describing a GPU");
    });
    if (!known.ok()) return known;
    return PlanCudnnAttention(shape, {.handle = nullptr,
                                      .properties = properties,
                                      .compute_capability = capability,
                                      .deterministic = deterministic})
        .status();
  }
};

// A backward pass with equal bits on Blackwell came with 9.18. A worker takes its own kernels there
// until then (attention_choice.h).
bool HasEqualBitsOnBlackwell() {
  int major = 0;
  int minor = 0;
  std::sscanf(CudnnName().c_str(), "cuDNN %d.%d", &major, &minor);
  return 100 * major + minor >= 918;
}

TEST_F(CudnnPlansTest, HasPlansWithTheSameBitsEveryTimeAndInAnyOrderForEveryGpuThatWeBuildFor) {
  if (const absl::Status opened = OpenCudnn(); !opened.ok()) GTEST_SKIP() << opened;
  for (const auto& [capability, multiprocessors] : {std::pair(80, 108), {90, 132}, {100, 148}}) {
    for (const AttentionShape& shape :
         {AttentionShape{8, 2048, 32, 8, 64}, AttentionShape{32, 1024, 12, 12, 64},
          AttentionShape{8, 1024, 16, 8, 128}, AttentionShape{1, 1000, 4, 1, 40}}) {
      const absl::Status status = PlanFor(capability, multiprocessors, shape);
      if (absl::StrContains(status.message(), "libcuda")) GTEST_SKIP() << "there is no driver";
      if (capability < 100 || HasEqualBitsOnBlackwell()) {
        EXPECT_TRUE(status.ok()) << capability << ", " << shape.length << ": " << status;
      } else {
        EXPECT_THAT(status, StatusIs(kFailedPrecondition)) << CudnnName() << ": " << status;
      }
      EXPECT_EQ(PlanFor(capability, multiprocessors, shape, false), absl::OkStatus())
          << capability << ", " << shape.length;
    }
  }
}

TEST_F(CudnnPlansTest, WhatItDoesNotTakeIsRefusedInItsWords) {
  if (const absl::Status opened = OpenCudnn(); !opened.ok()) GTEST_SKIP() << opened;
  EXPECT_THAT(PlanFor(90, 132, {1, 64, 2, 2, 36}),
              StatusIs(kFailedPrecondition, HasSubstr("cuDNN, ")));
}

// On a GPU.
class CudnnAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
    if (const absl::Status opened = OpenCudnn(); !opened.ok()) GTEST_SKIP() << opened;
  }
  static std::unique_ptr<AttentionProvider> Make(const AttentionShape& shape,
                                                 DeviceMemory& memory) {
    auto made = MakeCudnnAttention(shape, /*deterministic=*/true);
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return nullptr;
    (*made)->UseWorkspace(
        memory
            .Allocate<std::byte>("workspace", static_cast<int64_t>((*made)->workspace_bytes()), "")
            .value());
    return *std::move(made);
  }
};

TEST_F(CudnnAttentionTest, IsLikeTheOracle) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 128, 1, 1, 64}, AttentionShape{2, 201, 6, 2, 128},
        AttentionShape{3, 45, 8, 1, 64}, AttentionShape{1, 385, 2, 2, 40}}) {
    DeviceMemory memory;
    const auto provider = Make(shape, memory);
    ASSERT_NE(provider, nullptr);
    // Its graph keeps dk and dv of every query head in bf16 before it adds up a group's.
    ExpectLikeOracle(*provider, {.shape = shape, .rounds_heads = true});
  }
}

TEST_F(CudnnAttentionTest, WhatItDoesNotTakeIsDoneByOwnKernels) {
  DeviceMemory memory;
  const auto provider = Make({2, 128, 2, 1, 64}, memory);
  ASSERT_NE(provider, nullptr);
  OwnAttention own;
  for (const AttentionCase& c : {AttentionCase{.shape = {2, 128, 2, 1, 64}, .documents = {100, 28}},
                                 AttentionCase{.shape = {1, 64, 2, 1, 64}}}) {
    const AttentionInputs inputs = MakeInputs(c);
    EXPECT_EQ(OnDevice(*provider, c, inputs).dqkv, OnDevice(own, c, inputs).dqkv);
  }
}

TEST_F(CudnnAttentionTest, TheSameInputGivesTheSameBits) {
  const AttentionCase c = {.shape = {4, 1000, 8, 2, 64}};
  DeviceMemory memory;
  const auto provider = Make(c.shape, memory);
  ASSERT_NE(provider, nullptr);
  const AttentionInputs inputs = MakeInputs(c);
  const AttentionTensors once = OnDevice(*provider, c, inputs);
  for (int i = 0; i < 5; ++i) {
    const AttentionTensors again = OnDevice(*provider, c, inputs);
    EXPECT_EQ(once.out, again.out);
    EXPECT_EQ(once.log_sum_exp, again.log_sum_exp);
    EXPECT_EQ(once.dqkv, again.dqkv);
  }
}

TEST_F(CudnnAttentionTest, BothPassesCanBeRecorded) {
  const AttentionShape shape = {2, 256, 4, 2, 64};
  DeviceMemory memory;
  const auto provider = Make(shape, memory);
  ASSERT_NE(provider, nullptr);
  const int64_t values = int64_t{2} * 256 * 8 * 64;
  const auto bf16 = [&] { return memory.Allocate<__nv_bfloat16>("values", values, "").value(); };
  float* const rows = memory.Allocate<float>("rows", 2 * 256 * 4, "").value();
  const AttentionCall call = {.shape = shape,
                              .qkv = bf16(),
                              .out = bf16(),
                              .log_sum_exp = rows,
                              .dout = bf16(),
                              .delta = rows,
                              .dqkv = bf16()};
  const Stream stream = Stream::Create().value();
  const auto issue = [&] {
    const absl::Status forward = provider->Forward(call, stream.get());
    return forward.ok() ? provider->Backward(call, stream.get()) : forward;
  };
  ASSERT_TRUE(issue().ok());
  const auto graph = Graph::Record(stream.get(), issue).value();
  EXPECT_TRUE(graph.Start(stream.get()).ok());
  EXPECT_TRUE(stream.Wait("a graph").ok());
}

}  // namespace
}  // namespace causeway::worker::cuda
