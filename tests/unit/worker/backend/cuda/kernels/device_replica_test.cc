// A worker whose values are on devices, or divided over processes, sends the bytes and comes to the
// weights of one whose values are in host memory, whatever the devices, the codecs and the events
// of the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/codec/codec.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/worker/backend/cuda/kernels/kernel_testing.h"
#include "tests/unit/worker/backend/cuda/kernels/replica_fixture.h"

#ifdef CAUSEWAY_EMULATED_DEVICE
#include <device_emulation.h>

#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

using ::testing::HasSubstr;

constexpr char kSmallModel[] = "layers: 3 width: 40 heads: 2 mlp_width: 120";
// Its single fragment has more than two leaves.
constexpr char kLargerModel[] = "layers: 4 width: 96 heads: 2 mlp_width: 384";

void ExpectSame(Site& device, Site& host) {
  const auto sorted = [](Site& worker) {
    auto pushes = worker.exchange_->pushes();
    std::ranges::sort(pushes, {}, &FakeExchange::PushRecord::key);
    return pushes;
  };
  const auto device_pushes = sorted(device);
  const auto host_pushes = sorted(host);
  ASSERT_EQ(device_pushes.size(), host_pushes.size());
  for (size_t i = 0; i < host_pushes.size(); ++i) {
    EXPECT_EQ(device_pushes[i].key, host_pushes[i].key);
    EXPECT_TRUE(device_pushes[i].object == host_pushes[i].object)
        << "fragment " << host_pushes[i].key.first << ", round " << host_pushes[i].key.second;
  }
  EXPECT_TRUE(Bits(device.Local()) == Bits(host.Local()));
  const auto published = device.engine_->published().value();
  EXPECT_TRUE(Bits(published) == Bits(host.engine_->published().value()));
  EXPECT_EQ(device.engine_->rounds_merged(), host.engine_->rounds_merged());
  EXPECT_EQ(device.engine_->rounds_late(), host.engine_->rounds_late());
}

constexpr Layout kLayouts[] = {{.ranks = 1},
                               {.ranks = 1, .published_on_device = false},
                               {.ranks = 3},
                               {.ranks = 3, .published_on_device = false},
                               {.ranks = 3, .last_is_remote = true},
                               {.ranks = 3, .on_host = true}};

class DeviceReplicaTest : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
#ifdef CAUSEWAY_EMULATED_DEVICE
    emulation::SetMachine({.devices = 2});
#endif
  }
  void TearDown() override {
#ifdef CAUSEWAY_EMULATED_DEVICE
    emulation::SetOrder(emulation::Order::kForward);
#endif
  }

  static std::unique_ptr<Values> MakeValuesOf(const FragmentPlan& plan,
                                              const v1::SyncConfig& sync) {
    if (GetParam().on_host) return std::make_unique<RankedValues>(plan, sync, GetParam().ranks);
    return std::make_unique<DeviceValues>(plan, sync, GetParam());
  }
  // Workers that have the published state.
  struct Run {
    explicit Run(const std::string& sync, const std::string& model = kSmallModel)
        : config(TinyRun(sync, model)) {}
    std::unique_ptr<Site> OnHost() const { return Begin(nullptr); }
    std::unique_ptr<Site> OnDevice() const { return Begin(MakeValuesOf); }
    std::unique_ptr<Site> Begin(const MakeValues& values) const {
      auto worker = std::make_unique<Site>(config, 0.7F, /*max_advance=*/1, values);
      EXPECT_TRUE(worker->engine_->Fetch(0).ok());
      return worker;
    }
    const v1::RunConfig config;
    const FragmentPlan plan = FragmentPlan::Create(config).value();
  };

  // Two workers with the same run, on devices and on the host, after `script`.
  void Compare(const std::string& model, const std::string& sync,
               const std::function<void(Site&)>& script) {
    const Run run(sync, model);
    const auto host = run.OnHost();
    const auto device = run.OnDevice();
    for (const auto* const worker : {&host, &device}) {
      script(**worker);
      ASSERT_EQ((*worker)->engine_->Drain(), absl::OkStatus());
    }
    ExpectSame(*device, *host);
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceReplicaTest, testing::ValuesIn(kLayouts),
                         [](const auto& tested) {
                           return std::to_string(tested.param.ranks) + "Ranks" +
                                  (tested.param.published_on_device ? "" : "PublishedOnHost") +
                                  (tested.param.last_is_remote ? "OneOfAnotherProcess" : "") +
                                  (tested.param.on_host ? "OnTheHost" : "");
                         });

TEST_P(DeviceReplicaTest, OverlappedRoundsOfSeveralFragments) {
  Compare(kSmallModel,
          "fragments: 2 steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5 codec_up: INT4 "
          "codec_down: INT4",
          [](Site& worker) { worker.Run(1, 9); });
}

TEST_P(DeviceReplicaTest, WhatIsTrainedInFlightIsKept) {
  for (const char* const codec : {"FP32", "INT4"}) {
    Compare(kSmallModel,
            std::string("fragments: 2 steps_between_syncs: 6 overlap_steps: 4 keep_in_flight: 0.9 "
                        "codec_down: INT8 error_feedback: true codec_up: ") +
                codec,
            [](Site& worker) { worker.Run(1, 13); });
  }
}

TEST_P(DeviceReplicaTest, WhatIsTrainedInFlightIsKeptWhereTheAnswerIsGone) {
  Compare(kSmallModel, "fragments: 2 steps_between_syncs: 3 overlap_steps: 1 keep_in_flight: 1",
          [](Site& worker) {
            worker.exchange_->Forget({0, 1});
            worker.Run(1, 4);
          });
}

TEST_P(DeviceReplicaTest, AFragmentOfSeveralLeaves) {
  Compare(kLargerModel, "fragments: 1 steps_between_syncs: 2 codec_up: E3M0 codec_down: INT8",
          [](Site& worker) { worker.Run(1, 2); });
}

TEST_P(DeviceReplicaTest, ErrorFeedbackWithDecay) {
  for (const char* const codecs :
       {"codec_up: LM2 codec_down: LM2", "codec_up: SIGN1 codec_down: SIGN1"}) {
    Compare(kSmallModel,
            std::string("fragments: 1 steps_between_syncs: 2 overlap_steps: 1 error_feedback: true "
                        "error_feedback_decay: 0.9 ") +
                codecs,
            [](Site& worker) { worker.Run(1, 7); });
  }
}

// Blocks of 16, 20 and 48 values, which their gaps hold several times, behind whole ones and alone;
// also where only the answers have so few bits.
TEST_P(DeviceReplicaTest, WhatLiesBetweenTensorsMovesAsTheirValuesDo) {
  for (const char* const codecs :
       {"codec_up: LM2 error_feedback: true codec_down: LM2",
        "codec_up: SIGN1 error_feedback: true codec_down: SIGN1", "codec_up: INT4 codec_down: LM2",
        "codec_up: FP32 codec_down: SIGN1"}) {
    Compare("layers: 6 width: 20 heads: 2 mlp_width: 60",
            std::string("fragments: 2 steps_between_syncs: 4 overlap_steps: 1 ") + codecs,
            [](Site& worker) { worker.Run(1, 13); });
  }
}

TEST_P(DeviceReplicaTest, ADeltaThatMissedItsRoundTravelsWithTheNext) {
  for (const char* const codec :
       {"FP32", "INT4", "LM2 error_feedback: true", "SIGN1 error_feedback: true"}) {
    Compare(kSmallModel,
            std::string("fragments: 2 steps_between_syncs: 3 codec_down: FP32 codec_up: ") + codec,
            [](Site& worker) {
              worker.exchange_->CloseWithout({1, 1});
              worker.Run(1, 7);
              EXPECT_EQ(worker.engine_->rounds_late(), 1);
            });
  }
}

TEST_P(DeviceReplicaTest, AnAnswerThatIsGoneIsReplacedByTheState) {
  Compare(kSmallModel, "fragments: 2 steps_between_syncs: 3 mixing: 0.25", [](Site& worker) {
    worker.exchange_->Forget({0, 1});
    worker.Run(1, 4);
  });
}

TEST_P(DeviceReplicaTest, GradientsInsteadOfDeltas) {
  if (GetParam().on_host) GTEST_SKIP() << "there is no device";
  Compare(kSmallModel,
          "contribution: GRADIENT steps_between_syncs: 1 codec_up: BF16 codec_down: FP32",
          [](Site& worker) { worker.Run(1, 3); });
}

TEST_P(DeviceReplicaTest, ARestoredWorkerContinuesBitForBit) {
  for (const char* const rules :
       {"codec_up: INT4 mixing: 0.5", "codec_up: LM2 keep_in_flight: 0.5"}) {
    Compare(kSmallModel,
            std::string("fragments: 2 steps_between_syncs: 6 overlap_steps: 3 "
                        "error_feedback: true ") +
                rules,
            [](Site& worker) {
              worker.Run(1, 7);
              auto state = worker.engine_->Save().value();
              const std::vector<float> local = worker.Local();
              worker.MakeEngine();
              worker.SetLocal(local);
              ASSERT_EQ(worker.engine_->Restore(std::move(state), 7), absl::OkStatus());
              worker.Run(8, 12);
            });
  }
}

TEST_P(DeviceReplicaTest, AStateIsThatOfTheHost) {
  const Run run(
      "fragments: 2 steps_between_syncs: 4 codec_up: E3M0 error_feedback: true overlap_steps: 1");
  std::vector<SyncEngine::State> states;
  for (const bool on_device : {false, true}) {
    const auto worker = on_device ? run.OnDevice() : run.OnHost();
    worker->Run(1, 6);
    states.push_back(worker->engine_->Save().value());
  }
  EXPECT_TRUE(Bits(states[0].published) == Bits(states[1].published));
  EXPECT_TRUE(Bits(states[0].residual) == Bits(states[1].residual));
  for (size_t i = 0; i < states[0].fragments.size(); ++i) {
    EXPECT_TRUE(states[0].fragments[i].object_in_flight == states[1].fragments[i].object_in_flight);
  }
}

TEST_P(DeviceReplicaTest, ComputingWeightsAreTheMergedOnesRounded) {
  if (GetParam().on_host) GTEST_SKIP() << "there is no device";
  const Run run("fragments: 2 steps_between_syncs: 4 mixing: 0.5");
  const auto worker = run.OnDevice();
  auto& on_device = static_cast<DeviceValues&>(*worker->values_);
  EXPECT_THAT(on_device.changed(), testing::ElementsAre(0, 1, 2));
  const std::vector<float> local = on_device.Local();
  const std::vector<float> weights = on_device.Weights();
  for (size_t i = 0; i < local.size(); ++i) {
    ASSERT_EQ(weights[i], __bfloat162float(__float2bfloat16_rn(local[i])));
  }
}

TEST_P(DeviceReplicaTest, AHashThatIsNotTheAnnouncedOneEndsTheWorker) {
  const Run run("fragments: 1 steps_between_syncs: 2");
  const auto worker = run.OnDevice();
  worker->exchange_->Corrupt({0, 1});
  worker->Run(1, 2);
  // At the next boundary, or one later: no step waits for a hash.
  absl::Status status;
  for (int64_t step = 3; step <= 4 && status.ok(); ++step) {
    status = worker->Step(step);
  }
  EXPECT_THAT(status, StatusIs(kDataLoss, HasSubstr("the published copy hashes to")));
  EXPECT_FALSE(worker->exchange_->HasApplied({0, 1}));
}

TEST_P(DeviceReplicaTest, AValueThatCannotBeEncodedIsNamedAsOnTheHost) {
  const Run run("fragments: 1 steps_between_syncs: 1 codec_up: INT4");
  for (const bool on_device : {false, true}) {
    const auto worker = on_device ? run.OnDevice() : run.OnHost();
    std::vector<float> local = worker->Local();
    local[local.size() - 70] = std::numeric_limits<float>::infinity();
    worker->SetLocal(local);
    EXPECT_THAT(worker->engine_->AfterStep(1, 10, 2),
                StatusIs(kInvalidArgument, HasSubstr("the difference is -inf")));
  }
}

TEST_P(DeviceReplicaTest, AnAnswerThatCannotBeDecodedIsRefusedInTheHostsWords) {
  if (GetParam().on_host) GTEST_SKIP() << "there is no device";
  const Run run("fragments: 1 codec_down: E3M0");
  DeviceValues values(run.plan, run.config.sync(), GetParam());
  const std::unique_ptr<Replica> replica = values.MakeReplica();
  const auto size = static_cast<size_t>(run.plan.arena_size());
  const Codec& codec = *FindCodec(v1::E3M0).value();
  std::vector<uint8_t> answer(codec.EncodedBytes(size));
  answer[codec.EncodedBytes(8192) + 130] = 0x11;  // A code under a scale of zero.
  ASSERT_TRUE(replica->Merge(0, answer, 0).ok());
  EXPECT_THAT(replica->FinishMerge(0),
              StatusIs(kInvalidArgument, HasSubstr("codes under a scale of zero must be zero")));
  answer.pop_back();
  EXPECT_THAT(replica->StageAnswer(0, answer).message(), HasSubstr("bytes, not"));
}

#ifdef CAUSEWAY_EMULATED_DEVICE
TEST_P(DeviceReplicaTest, NoOrderOfStreamsChangesABit) {
  if (GetParam().on_host) GTEST_SKIP() << "there is no device";
  for (const emulation::Order order : {emulation::Order::kBackward, emulation::Order::kShuffled}) {
    emulation::SetOrder(order, 3);
    Compare(kSmallModel,
            "fragments: 2 steps_between_syncs: 4 overlap_steps: 1 mixing: 0.5 codec_up: INT4 "
            "error_feedback: true",
            [](Site& worker) { worker.Run(1, 6); });
  }
}

TEST_P(DeviceReplicaTest, NothingIsAllocatedOnceTheRunHasBegun) {
  if (GetParam().on_host) GTEST_SKIP() << "there is no device";
  // One fragment after the other, all at once, several in flight at a time, and data parallelism.
  for (const char* const sync :
       {"fragments: 2 steps_between_syncs: 6",
        "fragments: 1 steps_between_syncs: 2 codec_down: INT8",
        "fragments: 2 steps_between_syncs: 4 overlap_steps: 3 codec_up: INT4 error_feedback: true",
        "contribution: GRADIENT fragments: 1 steps_between_syncs: 1"}) {
    SCOPED_TRACE(sync);
    const Run run(sync);
    const auto worker = run.OnDevice();
    const int64_t before = emulation::AllocationsMade();
    worker->Run(1, 13);
    EXPECT_GT(worker->engine_->rounds_merged(), 1);
    EXPECT_EQ(emulation::AllocationsMade(), before);
    EXPECT_TRUE(worker->engine_->Drain().ok());
  }
}

TEST_P(DeviceReplicaTest, ALostDeviceEndsTheWorkerWithTheCause) {
  if (GetParam().on_host) GTEST_SKIP() << "there is no device";
  const Run run("fragments: 1 steps_between_syncs: 1");
  const auto worker = run.OnDevice();
  emulation::FailAfterKernels(0, cudaErrorECCUncorrectable);
  EXPECT_FALSE(worker->engine_->AfterStep(1, 10, 2).ok());
}

TEST_P(DeviceReplicaTest, TooLittleMemoryNamesWhatNeedsIt) {
  if (GetParam().on_host) GTEST_SKIP() << "there is no device";
  if (!GetParam().published_on_device) GTEST_SKIP() << "the host has it";
  emulation::SetMachine({.devices = 1, .memory = size_t{1} << 20});
  const Run run("fragments: 1 steps_between_syncs: 1", kLargerModel);
  const ShardPlan shards(run.plan, 1);
  EXPECT_THAT(
      DevicePart::Create(run.plan, shards, run.config.sync(), DeviceShard{}, DevicePartOptions{}),
      StatusIs(kResourceExhausted,
               AllOf(HasSubstr("published copy"), HasSubstr("--published=host"))));
}
#endif

}  // namespace
}  // namespace causeway::worker::cuda
