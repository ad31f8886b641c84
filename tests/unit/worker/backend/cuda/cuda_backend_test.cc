#include "worker/backend/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "tests/unit/worker/backend/cuda/backend_fixture.h"
#include "worker/backend/cuda/kernels/device_part.h"
#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

BackendFactory OnDevices(int devices) {
  return {.name = devices == 1 ? "OneGpu" : "TwoGpus",
          .make = [devices](const v1::RunConfig& config, const FragmentPlan& plan) {
            return MakeTestBackend(config, plan, devices);
          }};
}

// With as many GPUs as there are.
std::vector<BackendFactory> Factories() {
  std::vector<BackendFactory> factories = {OnDevices(1)};
  if (HaveDevices(2)) factories.push_back(OnDevices(2));
  return factories;
}

INSTANTIATE_TEST_SUITE_P(Cuda, BackendContract, ::testing::ValuesIn(Factories()),
                         [](const auto& param) { return param.param.name; });

class CudaBackendTest : public CudaBackendFixture {
 protected:
  std::vector<float> Train(int64_t steps) {
    for (int64_t step = 1; step <= steps; ++step) EXPECT_EQ(Step(step), absl::OkStatus());
    return Parameters();
  }
  absl::Status Refusal(const CudaBackend::Options& options, const std::string& settings) {
    const v1::RunConfig config = ContractConfig(settings);
    const FragmentPlan plan = FragmentPlan::Create(config).value();
    return CudaBackend::Create(config, plan, options).status();
  }
};

TEST_F(CudaBackendTest, GraphsAndRecomputationDoNotChangeTheBits) {
  CudaBackend::Options options = TestOptions(1);
  options.recompute = Recompute::kNone;
  Begin(options, "train { optimizer: MUON }");
  const std::vector<float> expected = Train(2);
  options.graphs = false;
  Begin(options, "train { optimizer: MUON }");
  EXPECT_EQ(Train(2), expected);
  size_t memory = backend_->memory_bytes();
  for (const Recompute recompute : {Recompute::kNorms, Recompute::kBlocks}) {
    options.recompute = recompute;
    Begin(options, "train { optimizer: MUON }");
    EXPECT_EQ(Train(2), expected);
    EXPECT_LT(backend_->memory_bytes(), memory);
    memory = backend_->memory_bytes();
  }
}

TEST_F(CudaBackendTest, MuonKeepsNoSecondMoments) {
  Begin(TestOptions(HaveDevices(2) ? 2 : 1), "train { optimizer: MUON }");
  (void)Train(1);
  const OptimizerState state = backend_->SaveOptimizer().value();
  for (const PlacedTensor& tensor : plan_.tensors()) {
    const std::span<const float> second(state.second_moments.data() + tensor.offset,
                                        static_cast<size_t>(tensor.info.size()));
    const bool any = std::ranges::any_of(second, [](float value) { return value != 0; });
    EXPECT_EQ(any, tensor.info.role != TensorRole::kMatrix) << tensor.info.name;
  }
}

// Two GPUs sum the same gradients in another order.
TEST_F(CudaBackendTest, TwoGpusTrainAsOneDoes) {
  if (!HaveDevices(2)) GTEST_SKIP() << "this machine has one GPU";
  for (const char* settings : {"", "train { optimizer: MUON }"}) {
    Begin(TestOptions(1), settings);
    const std::vector<float> one = Train(3);
    Begin(TestOptions(2), settings);
    const std::vector<float> two = Train(3);
    EXPECT_LT(RelativeDistance(two, one), 1e-4);
    EXPECT_GT(RelativeDistance(two, one), 0);
  }
}

TEST_F(CudaBackendTest, SaysWhichModelsAndBatchesItDoesNotTake) {
  const CudaBackend::Options options = TestOptions(1);
  EXPECT_THAT(
      Refusal(options, "model { mlp_width: 100 }"),
      StatusIs(kInvalidArgument, AllOf(HasSubstr("model.mlp_width"), HasSubstr("multiple of 8"),
                                       HasSubstr("100"), HasSubstr("--device=cpu"))));
  if (!HaveDevices(2)) return;
  EXPECT_THAT(Refusal(TestOptions(2), "train { micro_batch_sequences: 4 }"),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("1 micro-batches"), HasSubstr("2 GPUs"),
                                               HasSubstr("--device=cuda:0"))));
}

#ifdef CAUSEWAY_EMULATED_DEVICE

// The devices of a test that sets its own.
class Staged : public CudaBackendTest {
 protected:
  void Stage(const emulation::Machine& machine) {
    backend_.reset();
    HaveDevices(1);
    emulation::SetMachine(machine);
  }
  void TearDown() override { Stage({.devices = 4}); }
};

TEST_F(Staged, KeepsLessWhereTheMemoryDoesNotSufficeAndTrains) {
  for (const int devices : {1, 2}) {
    Stage({.devices = devices});
    CudaBackend::Options options = TestOptions(devices);
    options.recompute = Recompute::kNorms;
    Begin(options);
    const size_t enough = backend_->memory_bytes();
    // Beside it what synchronization allocates later, and a sixty-fourth.
    const ShardPlan shards(plan_, /*ranks=*/devices, options.least_bucket);
    int64_t later = 0;
    for (int rank = 0; rank < devices; ++rank) {
      later = std::max(later, DeviceReplicaBytes(plan_, shards, config_.sync(), rank,
                                                 options.published_on_device));
    }
    Stage({.devices = devices, .memory = (enough + static_cast<size_t>(later)) / 63 * 64 + 256});
    Begin(TestOptions(devices));
    EXPECT_EQ(backend_->recompute(), Recompute::kNorms);
    const auto parts = backend_->MakeParts();
    EXPECT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(Step(1), absl::OkStatus());
  }
}

TEST_F(Staged, OutOfMemorySaysWhoNeedsHowMuchAndWhatLowersIt) {
  Stage({.devices = 1, .memory = size_t{18} << 20});
  EXPECT_THAT(Refusal(TestOptions(1), ""),
              StatusIs(kResourceExhausted,
                       AllOf(HasSubstr("GPU 0"), HasSubstr("needs"), HasSubstr("are free"),
                             HasSubstr("bf16 weights"), HasSubstr("lowers it"),
                             HasSubstr("set aside for synchronization"))));
  EXPECT_EQ(emulation::AllocatedBytes(0), 0U);
}

TEST_F(Staged, ALostGpuEndsTheStepWithItsCauseAndAllStepsAfterIt) {
  for (const int devices : {1, 2}) {
    Stage({.devices = devices});
    Begin(TestOptions(devices));
    Train(1);
    emulation::FailAfterKernels(1, cudaErrorECCUncorrectable);
    const absl::Status lost = Step(2);
    EXPECT_THAT(lost, StatusIs(kUnavailable, AllOf(HasSubstr("GPU "), HasSubstr("ECC"))));
    EXPECT_EQ(Step(3), lost);
    std::vector<float> parameters(static_cast<size_t>(plan_.arena_size()));
    EXPECT_EQ(backend_->CopyParameters(parameters), lost);
  }
}

// A GPU's products may be computed in another way for another number of matrices.
TEST_F(Staged, HowManyMatricesMuonTakesAtATimeDoesNotChangeTheBits) {
  for (const int devices : {1, 2}) {
    Stage({.devices = devices});
    CudaBackend::Options options = TestOptions(devices);
    Begin(options, "train { optimizer: MUON }");
    const std::vector<float> one_by_one = Train(2);
    const size_t memory = backend_->memory_bytes();
    options.muon_rank_values = kMuonRankValues;
    Begin(options, "train { optimizer: MUON }");
    EXPECT_EQ(Train(2), one_by_one);
    EXPECT_GT(backend_->memory_bytes(), memory);
  }
}

TEST_F(Staged, GpusOfOtherProcessesAreNotUsed) {
  CudaBackend::Options options = TestOptions(2);
  emulation::SetMachine({.devices = 4});
  for (DeviceInfo& device : options.devices) device.index += 2;
  ASSERT_TRUE(UseDevice(2).ok());  // As whoever found them does.
  Begin(options);
  (void)Train(1);
  EXPECT_TRUE(backend_->SaveOptimizer().ok());
  for (const int device : {0, 1}) EXPECT_FALSE(emulation::HasContext(device)) << device;
  for (const int device : {2, 3}) EXPECT_TRUE(emulation::HasContext(device)) << device;
}

TEST_F(Staged, AStepWaitsForTheDeviceOnceAtItsEndAndAllocatesNothing) {
  Stage({.devices = 1});
  Begin(TestOptions(1), "train { optimizer: MUON }");
  Train(1);
  const int64_t before = emulation::HostWaits();
  const int64_t allocations = emulation::AllocationsMade();
  ASSERT_EQ(Step(2), absl::OkStatus());
  EXPECT_EQ(emulation::HostWaits(), before + 1);
  EXPECT_EQ(emulation::AllocationsMade(), allocations);
}

TEST_F(Staged, TheOrderOfThreadsAndStreamsDoesNotChangeTheBits) {
  for (const int devices : {1, 2}) {
    Stage({.devices = devices});
    Begin(TestOptions(devices), "train { optimizer: MUON }");
    const std::vector<float> expected = Train(2);
    for (const emulation::Order order :
         {emulation::Order::kBackward, emulation::Order::kShuffled}) {
      emulation::SetOrder(order);
      Begin(TestOptions(devices), "train { optimizer: MUON }");
      EXPECT_EQ(Train(2), expected);
    }
    emulation::SetOrder(emulation::Order::kForward);
  }
}

#endif

}  // namespace
}  // namespace causeway::worker::cuda
