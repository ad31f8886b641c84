// Models on GPUs of 80 GB: the sums of what a worker allocates, by devices that compute nothing and
// have no memory. docs/gpu.md has the figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/params/run_config.h"
#include "tests/unit/worker/backend/cuda/test_backend.h"
#include "worker/backend/cuda/kernels/device_part.h"
#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#include "tests/unit/common/base/status_is.h"

namespace causeway::worker::cuda {
namespace {

constexpr size_t kMemory = 80'000'000'000;
constexpr double kLibraries = 1e-9 * (1 << 30);  // Set aside on such a GPU.

constexpr char kSync[] = " sync { fragments: 8 steps_between_syncs: 100 overlap_steps: 5 }";
constexpr char kEight[] = R"(
  model { layers: 32 width: 4096 heads: 32 kv_heads: 8 head_dim: 128 mlp_width: 14336
          vocabulary_size: 128256 sequence_length: 8192 qk_norm: false untied_head: true }
  train { batch_sequences: 64 micro_batch_sequences: 1 } )";
constexpr char kFifteen[] = R"(
  model { layers: 40 width: 5120 heads: 40 kv_heads: 8 head_dim: 128 mlp_width: 17408
          vocabulary_size: 151936 sequence_length: 8192 qk_norm: true untied_head: true }
  train { batch_sequences: 64 micro_batch_sequences: 1 } )";

std::string Preset(const std::string& name, int micro_batch) {
  return absl::StrCat("model { preset: '", name,
                      "' } train { batch_sequences: 64 micro_batch_sequences: ", micro_batch,
                      " } ");
}

struct Flags {
  bool shards_gradients = false;
  bool published_on_device = true;
};
constexpr Flags kSharded = {.shards_gradients = true};

// `gigabytes` of what trains, and what is set aside for synchronization and libraries.
struct Fit {
  std::string model;
  const char* optimizer = "MUON";
  int gpus = 1;
  Flags flags = {};
  double gigabytes = 0;
  double set_aside = 0;
  Recompute recompute = Recompute::kNone;
};

class MemoryFitTest : public ::testing::Test {
 protected:
  void SetUp() override { HaveDevices(1); }
  void TearDown() override { emulation::SetMachine({.devices = 4}); }

  absl::StatusOr<std::unique_ptr<CudaBackend>> Make(const Fit& fit) {
    emulation::SetMachine({.devices = fit.gpus, .memory = kMemory, .computes = false});
    CudaBackend::Options options = TestOptions(fit.gpus);
    const CudaBackend::Options defaults;
    options.least_bucket = defaults.least_bucket;
    options.muon_rank_values = defaults.muon_rank_values;
    options.shard_gradients = fit.flags.shards_gradients;
    options.published_on_device = fit.flags.published_on_device;
    config_ =
        ParseRunConfig(absl::StrCat(fit.model, "train { optimizer: ", fit.optimizer, " }", kSync),
                       "test")
            .value();
    EXPECT_TRUE(CompleteRunConfig(config_).ok());
    plan_ = FragmentPlan::Create(config_).value();
    return CudaBackend::Create(config_, plan_, options);
  }

  v1::RunConfig config_;
  FragmentPlan plan_;
};

TEST_F(MemoryFitTest, WhatTheTableSays) {
  const std::string gpt2 = Preset("gpt2-124m-shape", 8);
  const std::string half = Preset("qwen2.5-0.5b-shape", 8);
  const std::string llama = Preset("llama-3.2-1b-shape", 8);
  const std::string qwen = Preset("qwen2.5-1.5b-shape", 8);
  const std::string four = Preset("paper-4b", 8);
  using enum Recompute;
  const Fit fits[] = {
      {gpt2, "MUON", 1, {}, 5.45, 1.87, kNone},
      {gpt2, "MUON", 8, {}, 4.51, 1.17, kNone},
      {gpt2, "MUON", 8, kSharded, 4.29, 1.17, kNone},
      {half, "MUON", 1, {}, 17.01, 4.14, kNone},
      {half, "MUON", 8, {}, 13.62, 1.45, kNone},
      {half, "MUON", 8, kSharded, 12.55, 1.45, kNone},
      {llama, "MUON", 1, {}, 41.29, 8.11, kNone},
      {llama, "MUON", 8, {}, 32.49, 1.95, kNone},
      {llama, "MUON", 8, kSharded, 29.70, 1.95, kNone},
      {qwen, "MUON", 1, {}, 41.09, 9.11, kNone},
      {qwen, "MUON", 8, {}, 30.22, 2.08, kNone},
      {qwen, "MUON", 8, kSharded, 26.12, 2.08, kNone},
      {four, "MUON", 1, {.published_on_device = false}, 62.84, 7.87, kBlocks},
      {four, "MUON", 8, {}, 65.08, 3.72, kNone},
      {four, "MUON", 8, kSharded, 51.77, 3.72, kNone},
      {kEight, "MUON", 8, {}, 65.71, 6.14, kBlocks},
      {kEight, "ADAMW", 8, {}, 66.19, 6.14, kBlocks},
      {kEight, "MUON", 8, kSharded, 63.32, 6.14, kNorms},
      {kFifteen, "MUON", 8, kSharded, 68.51, 10.11, kBlocks},
      {kFifteen, "ADAMW", 8, {true, false}, 71.62, 3.55, kBlocks},
  };
  for (const Fit& fit : fits) {
    SCOPED_TRACE(absl::StrCat(fit.model, fit.optimizer, " on ", fit.gpus, " GPUs, gradients ",
                              fit.flags.shards_gradients ? "sharded" : "whole"));
    const auto made = Make(fit).value();
    const ShardPlan shards(plan_, fit.gpus);
    const double replica =
        1e-9 * static_cast<double>(DeviceReplicaBytes(plan_, shards, config_.sync(), 0,
                                                      fit.flags.published_on_device));
    EXPECT_NEAR(1e-9 * static_cast<double>(made->memory_bytes()), fit.gigabytes, 0.1);
    EXPECT_NEAR(replica + kLibraries, fit.set_aside, 0.1);
    EXPECT_EQ(made->recompute(), fit.recompute);
  }
}

TEST_F(MemoryFitTest, AModelThatNeedsItsGradientsDividedIsToldSo) {
  EXPECT_THAT(Make({.model = kFifteen, .gpus = 8}),
              StatusIs(kResourceExhausted,
                       ::testing::AllOf(::testing::HasSubstr("gradients needs 59.07 GB"),
                                        ::testing::HasSubstr("--gradients=sharded"))));
  EXPECT_THAT(
      Make({.model = kEight, .gpus = 1}),
      StatusIs(kResourceExhausted, ::testing::Not(::testing::HasSubstr("--gradients=sharded"))));
}

}  // namespace
}  // namespace causeway::worker::cuda
#endif
