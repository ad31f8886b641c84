// Gradients of which every GPU keeps its share alone.
#include "worker/backend/cuda/staged_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "tests/unit/worker/backend/cuda/backend_fixture.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/sync/replica.h"
#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

std::vector<BackendFactory> StagedFactories() {
  std::vector<BackendFactory> factories;
  if (HaveDevices(2)) {
    factories.push_back({.name = "TwoGpusThatDivideGradients",
                         .make = [](const v1::RunConfig& config, const FragmentPlan& plan) {
                           CudaBackend::Options options = TestOptions(2);
                           options.shard_gradients = true;
                           return MakeTestBackend(config, plan, options);
                         }});
  }
  return factories;
}

INSTANTIATE_TEST_SUITE_P(StagedGradients, BackendContract, ::testing::ValuesIn(StagedFactories()),
                         [](const auto& param) { return param.param.name; });

struct TrainedInShards {
  std::vector<double> norms;
  std::vector<float> parameters;
  OptimizerState optimizer;
};

class StagedGradientsTest : public CudaBackendFixture {
 protected:
  void SetUp() override {
    if (!HaveDevices(2)) GTEST_SKIP() << "this machine has one GPU";
  }

  void Begin(const std::string& settings, int devices, bool shard) {
    CudaBackend::Options options = TestOptions(devices);
    options.shard_gradients = shard;
    CudaBackendFixture::Begin(options, settings);
  }

  TrainedInShards Train(const std::string& settings, int devices, bool shard) {
    Begin(settings, devices, shard);
    TrainedInShards trained;
    for (int64_t step = 1; step <= 2; ++step) {
      const auto report = backend_->Step(step, ContractReader(step));
      EXPECT_TRUE(report.ok()) << report.status();
      if (report.ok()) trained.norms.push_back(report->update->gradient_norm);
    }
    trained.parameters = Parameters();
    trained.optimizer = backend_->SaveOptimizer().value();
    return trained;
  }

  static void ExpectSameBits(const TrainedInShards& a, const TrainedInShards& b) {
    EXPECT_EQ(a.norms, b.norms);
    EXPECT_EQ(a.parameters, b.parameters);
    EXPECT_EQ(a.optimizer.first_moments, b.optimizer.first_moments);
    EXPECT_EQ(a.optimizer.second_moments, b.optimizer.second_moments);
  }
};

// Heads of their own and shared ones, tensors with gaps between them, fragments of every pattern.
TEST_F(StagedGradientsTest, OneMicroBatchForEachGpuGivesTheBitsOfWholeGradients) {
  for (const auto& [devices, settings] : std::initializer_list<std::pair<int, const char*>>{
           {2, ""},
           {4,
            "model { untied_head: true layers: 3 } sync { fragments: 1 } train { optimizer: MUON "
            "micro_batch_sequences: 1 }"},
           {2,
            "model { width: 40 mlp_width: 104 learned_positions: 16 layer_norm: true mlp: GELU "
            "qk_norm: false qkv_bias: true output_bias: true mlp_bias: true layers: 1 } "
            "sync { fragments: 3 pattern: BALANCED } train { document_masking: true }"}}) {
    if (!HaveDevices(devices)) continue;
    SCOPED_TRACE(settings);
    const TrainedInShards whole = Train(settings, devices, /*shard=*/false);
    ExpectSameBits(Train(settings, devices, /*shard=*/true), whole);
  }
}

// The sum over the GPUs comes before that over the micro-batches, not after it.
TEST_F(StagedGradientsTest, SeveralMicroBatchesDifferByRounding) {
  const std::string settings = "train { micro_batch_sequences: 1 optimizer: MUON }";
  const TrainedInShards whole = Train(settings, 2, /*shard=*/false);
  const TrainedInShards sharded = Train(settings, 2, /*shard=*/true);
  EXPECT_LT(RelativeDistance(sharded.parameters, whole.parameters), 1e-4);
  EXPECT_GT(RelativeDistance(sharded.parameters, whole.parameters), 0);
  EXPECT_NEAR(sharded.norms[0], whole.norms[0], 1e-4 * whole.norms[0]);
  ExpectSameBits(Train(settings, 2, /*shard=*/true), sharded);
}

TEST_F(StagedGradientsTest, OneGpuHasNothingToDivide) {
  ExpectSameBits(Train("", 1, /*shard=*/true), Train("", 1, /*shard=*/false));
}

// With gradients as what is contributed, the codes of the own pieces.
TEST_F(StagedGradientsTest, SendsTheGradientsThatWholeOnesWouldSend) {
  std::vector<std::vector<uint8_t>> sent;
  for (const bool shard : {false, true}) {
    Begin(
        "sync { contribution: GRADIENT fragments: 1 steps_between_syncs: 1 codec_up: BF16 "
        "codec_down: FP32 } outer { optimizer: ADAMW }",
        2, shard);
    const auto replica =
        std::make_unique<Replica>(plan_, config_.sync(), backend_->MakeParts().value());
    const std::vector<uint8_t> zeros(static_cast<size_t>(plan_.range(0).size()) * sizeof(float));
    ASSERT_TRUE(replica->SetPublished(0, zeros).ok());
    for (int64_t step = 1; step <= 2; ++step) {
      ASSERT_EQ(Step(step), absl::OkStatus());
      const auto delta = replica->Snapshot(0).value();
      const EncodedObject object = delta->Encode().value();
      sent.emplace_back(object.bytes.begin(), object.bytes.end());
    }
  }
  EXPECT_EQ(sent[2], sent[0]);
  EXPECT_EQ(sent[3], sent[1]);
  EXPECT_NE(sent[0], sent[1]);
}

// A group of one rank, whose sums are what is there: nothing waits for a stream.
class OneRank final : public LocalGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status ReduceScatterSum(void*, std::span<const int64_t> bounds, GroupType,
                                GroupStream) override {
    return CheckBounds(bounds, 1);
  }
  absl::Status AllGather(void*, std::span<const int64_t>, GroupType, GroupStream) override {
    return {};
  }
  absl::Status Broadcast(void*, int64_t, GroupType, int, GroupStream) override { return {}; }
  absl::Status BeginBatch() override { return {}; }
  absl::Status EndBatch() override { return {}; }
  void Abort(const absl::Status&) override {}
  absl::Status status() const override { return {}; }
};

// Fills the gradients of three micro-batches, stage after stage; expects their sums, and zeros
// between tensors.
void ExpectSumsOfThreeMicroBatches(bool tied) {
  const v1::RunConfig config = ContractConfig(
      tied ? "model { layers: 5 width: 40 }" : "model { layers: 5 width: 40 untied_head: true }");
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  const ShardPlan shards(plan, /*ranks=*/1, /*least_bucket=*/64);
  ASSERT_TRUE(UseDevice(0).ok());
  DeviceMemory memory;
  const Stream stream = Stream::Create().value();
  const Stream exchange = Stream::Create().value();
  OneRank group;
  const auto staged =
      StagedGradients::Create(
          {.plan = &plan, .shards = &shards, .group = &group, .rank = 0, .tied_head = tied},
          &memory, stream.get(), exchange.get())
          .value();
  const GradientPlaces places = staged->places();
  const auto value = [](const PlacedTensor& tensor, int micro_batch) {
    return static_cast<float>(tensor.offset % 1000 + 1000 * micro_batch);
  };
  std::vector<std::vector<float>> written;
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    for (int stage = 0; stage < shards.stages(); ++stage) {
      ASSERT_TRUE(staged->Begin(stage, stream.get()).ok());
      for (const PlacedTensor& tensor : plan.tensors()) {
        // A head that is the embedding is written first.
        const bool is_head = tied && tensor.info.role == TensorRole::kEmbedding;
        if (stage != (is_head ? 0 : ReadyStage(tensor.info, config.model().layers()))) continue;
        const auto& from = written.emplace_back(static_cast<size_t>(tensor.info.size()),
                                                value(tensor, micro_batch));
        ASSERT_TRUE(CopyAsync(places.At(tensor.offset), from.data(), std::ssize(from), stream.get(),
                              "writing a gradient")
                        .ok());
      }
      ASSERT_TRUE(staged->Sum(stage, /*accumulate=*/micro_batch > 0, stream.get()).ok());
    }
  }
  std::vector<float> own(static_cast<size_t>(plan.arena_size()));
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(
      cudaMemcpy(own.data(), staged->own(), own.size() * sizeof(float), cudaMemcpyDeviceToHost),
      cudaSuccess);
  std::vector<float> expected(own.size(), 0.0F);
  for (const PlacedTensor& tensor : plan.tensors()) {
    const float sum = value(tensor, 0) + value(tensor, 1) + value(tensor, 2);
    std::fill_n(expected.begin() + tensor.offset, tensor.info.size(), sum);
  }
  EXPECT_EQ(own, expected);
}

TEST(StagedBuffersTest, SumsAreTakenBeforeABufferIsWrittenAgain) {
  HaveDevices(1);
  ExpectSumsOfThreeMicroBatches(/*tied=*/true);
  ExpectSumsOfThreeMicroBatches(/*tied=*/false);
}

#ifdef CAUSEWAY_EMULATED_DEVICE

TEST(StagedBuffersTest, TheOrderOfStreamsDoesNotMatter) {
  HaveDevices(1);
  for (const emulation::Order order : {emulation::Order::kBackward, emulation::Order::kShuffled}) {
    emulation::SetOrder(order);
    ExpectSumsOfThreeMicroBatches(/*tied=*/true);
    ExpectSumsOfThreeMicroBatches(/*tied=*/false);
  }
  emulation::SetOrder(emulation::Order::kForward);
}

TEST_F(StagedGradientsTest, TheOrderOfThreadsAndStreamsDoesNotChangeTheBits) {
  for (const char* settings : {"train { micro_batch_sequences: 1 }",
                               "train { micro_batch_sequences: 1 optimizer: MUON } "
                               "model { untied_head: true layers: 4 }"}) {
    const TrainedInShards expected = Train(settings, 2, /*shard=*/true);
    for (const emulation::Order order :
         {emulation::Order::kBackward, emulation::Order::kShuffled}) {
      emulation::SetOrder(order);
      ExpectSameBits(Train(settings, 2, /*shard=*/true), expected);
    }
    emulation::SetOrder(emulation::Order::kForward);
  }
}

TEST_F(StagedGradientsTest, ALostGpuEndsTheStepWithItsCause) {
  for (const int kernels : {1, 10, 40}) {
    backend_.reset();
    emulation::SetMachine({.devices = 2});
    Begin("", 2, /*shard=*/true);
    ASSERT_EQ(Step(1), absl::OkStatus());
    emulation::FailAfterKernels(kernels, cudaErrorECCUncorrectable);
    EXPECT_THAT(std::string(Step(2).message()), ::testing::HasSubstr("ECC"));
  }
  backend_.reset();
  emulation::SetMachine({.devices = 4});
}

#endif

}  // namespace
}  // namespace causeway::worker::cuda
