#include "common/params/run_config.h"

#include <tuple>

#include "common/params/tensor_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ModelPreset, EveryNameCompletesByItself) {
  for (const std::string& name : ModelPresetNames()) {
    const v1::RunConfig config = Completed("model { preset: '" + name + "' }");
    EXPECT_EQ(config.model().preset(), name);
    EXPECT_EQ(config.model().head_dim() * config.model().heads(), config.model().width()) << name;
  }
}

TEST(ModelPreset, PaperShapesAreThoseOfItsTable) {
  for (const auto& [name, mlp_width, layers, heads, width] :
       {std::tuple("paper-35m", 2048, 6, 8, 512),
        {"paper-100m", 3072, 9, 12, 768},
        {"paper-200m", 4096, 12, 16, 1024},
        {"paper-300m", 5120, 15, 20, 1280},
        {"paper-500m", 6144, 18, 24, 1536},
        {"paper-1b", 8192, 24, 32, 2048},
        {"paper-4b", 12288, 36, 48, 3072}}) {
    const auto model = ModelPreset(name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->mlp_width(), mlp_width) << name;
    EXPECT_EQ(model->layers(), layers) << name;
    EXPECT_EQ(model->heads(), heads) << name;
    EXPECT_EQ(model->width(), width) << name;
    EXPECT_EQ(model->vocabulary_size(), 32000) << name;
  }
}

TEST(ModelPreset, CpuShapesHaveTheSizeOfTheirNames) {
  const auto parameters = [](const char* name) {
    return static_cast<double>(CountParameters(
        BuildTensorTable(Completed(std::string("model { preset: '") + name + "' }").model())));
  };
  EXPECT_NEAR(parameters("tiny-1m"), 1e6, 0.3e6);
  EXPECT_NEAR(parameters("small-10m"), 10e6, 2e6);
  EXPECT_NEAR(parameters("gpt2-124m-shape"), 124e6, 1e6);
}

TEST(ModelPreset, ShapesOfOtherPeoplesModelsHaveTheirParameters) {
  for (const auto& [name, parameters] : {std::pair("qwen2.5-0.5b-shape", 494032768),
                                         {"qwen2.5-1.5b-shape", 1543714304},
                                         {"llama-3.2-1b-shape", 1235814400}}) {
    const v1::RunConfig config = Completed(std::string("model { preset: '") + name + "' }");
    EXPECT_EQ(CountParameters(BuildTensorTable(config.model())), parameters) << name;
  }
}

TEST(ModelPreset, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const absl::Status status = ModelPreset("tiny-2m").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& name : ModelPresetNames()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"tiny-2m\""));
}

TEST(RunPreset, EveryNameCompletesWithEveryModelWithoutAWarning) {
  for (const std::string& run : RunPresetNames()) {
    for (const std::string& model : ModelPresetNames()) {
      SCOPED_TRACE(run + " with " + model);
      absl::StatusOr<v1::RunConfig> config = RunPreset(run);
      ASSERT_TRUE(config.ok()) << config.status();
      config->mutable_model()->set_preset(model);
      const auto warnings = CompleteRunConfig(*config);
      ASSERT_TRUE(warnings.ok()) << warnings.status();
      EXPECT_THAT(*warnings, IsEmpty());
    }
  }
}

TEST(RunPreset, PaperIsThePaper) {
  const v1::RunConfig config = Completed("model { preset: 'paper-35m' }", *RunPreset("paper"));
  EXPECT_EQ(config.train().optimizer(), v1::TrainConfig::ADAMW);
  EXPECT_EQ(config.sync().pattern(), v1::SyncConfig::STRIDED);
  EXPECT_EQ(config.sync().codec_up(), v1::E3M0);
  EXPECT_EQ(config.sync().codec_down(), v1::E3M0);
  EXPECT_EQ(config.sync().steps_between_syncs(), 100);
  EXPECT_EQ(config.sync().mixing(), 0.5);
  EXPECT_EQ(config.outer().optimizer(), v1::OuterConfig::NESTEROV);
  EXPECT_EQ(config.outer().learning_rate(), 0.4);
  EXPECT_EQ(config.outer().momentum(), 0.9);
}

TEST(RunPreset, BestTrainsWithMuonAndTwoBitsBothWays) {
  const v1::RunConfig config = *RunPreset("best");
  EXPECT_EQ(config.train().optimizer(), v1::TrainConfig::MUON);
  EXPECT_EQ(config.sync().codec_up(), v1::LM2);
  EXPECT_EQ(config.sync().codec_down(), v1::LM2);
  EXPECT_TRUE(config.sync().error_feedback());
  EXPECT_EQ(config.sync().steps_between_syncs(), 16);  // Two bits in the bytes of four at H 30.
  EXPECT_EQ(config.sync().mixing(), 0);
  EXPECT_EQ(config.outer().optimizer(), v1::OuterConfig::SGD);
  EXPECT_EQ(config.outer().learning_rate(), 1);
  EXPECT_EQ(FormatRunConfig(config), FormatRunConfig(*RunPreset("streaming")));
}

TEST(RunPreset, DataParallelSendsGradientsAtEveryStep) {
  const v1::RunConfig config =
      Completed("model { preset: 'tiny-1m' }", *RunPreset("data-parallel"));
  EXPECT_EQ(config.sync().contribution(), v1::SyncConfig::GRADIENT);
  EXPECT_EQ(config.sync().steps_between_syncs(), 1);
  EXPECT_EQ(config.outer().optimizer(), v1::OuterConfig::ADAMW);
  EXPECT_EQ(config.outer().learning_rate(), config.train().learning_rate());
  EXPECT_EQ(config.outer().momentum(), 0);
}

TEST(RunPreset, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const absl::Status status = RunPreset("bets").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& name : RunPresetNames()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

}  // namespace
}  // namespace causeway
