#include <tuple>

#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/params/tensor_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ParseRunConfig, AnUnknownFieldIsRefusedWithLineAndColumn) {
  EXPECT_THAT(
      ParseRunConfig("run_name: 'x'\nsync {\n  fragmnets: 3\n}\n", "run.textproto"),
      StatusIs(kInvalidArgument, AllOf(HasSubstr("run.textproto:3:"), HasSubstr("fragmnets"))));
}

TEST(ParseRunConfig, AMalformedValueIsRefusedWithLineAndColumn) {
  for (const auto& [text, position] : {std::tuple("sync { fragments: three }", "f:1:19:"),
                                       {"\n\ntrain { steps: 1.5 }", "f:3:16:"},
                                       {"sync { pattern: ZIGZAG }", "f:1:"},
                                       {"sync {", "f:1:"},
                                       {"train { steps: 99999999999999999999 }", "f:1:"}}) {
    EXPECT_THAT(ParseRunConfig(text, "f"), StatusIs(kInvalidArgument, HasSubstr(position))) << text;
  }
}

TEST(ParseRunConfig, CommentsAndNothingAtAllAreFine) {
  EXPECT_EQ(FormatRunConfig(Parsed("# only a comment\n")), "");
  EXPECT_EQ(FormatRunConfig(Parsed("")), "");
}

// Settings that a configuration has already change nothing.
void ExpectHas(const v1::RunConfig& config, const std::string& settings) {
  EXPECT_EQ(FormatRunConfig(Parsed(settings, config)), FormatRunConfig(config));
}

TEST(ParseRunConfig, TextReplacesTheFieldsOfItsBaseAndKeepsTheOthers) {
  ExpectHas(Parsed("sync { overlap_steps: 4 codec_up: BF16 }", *RunPreset("best")),
            "sync { overlap_steps: 4 codec_up: BF16 codec_down: LM2 } outer { learning_rate: 1 }");
}

TEST(ParseRunConfig, ZeroReplacesAPresetsValue) {
  const std::string zeros =
      "model { preset: 'tiny-1m' qk_norm: false } train { weight_decay: 0 warmup_steps: 0 } "
      "sync { overlap_steps: 0 mixing: 0 } outer { momentum: 0 learning_rate: 0 }";
  ExpectHas(Completed(zeros, *RunPreset("paper")), zeros);
}

TEST(FormatRunConfig, IsReadBackAsItWas) {
  for (const std::string& name : RunPresetNames()) {
    const v1::RunConfig config = Completed(kSmallModel, *RunPreset(name));
    EXPECT_EQ(FormatRunConfig(Parsed(FormatRunConfig(config))), FormatRunConfig(config)) << name;
    EXPECT_EQ(RunConfigHash(Parsed(FormatRunConfig(config))), RunConfigHash(config)) << name;
  }
}

TEST(CompleteRunConfig, FillsInTheDefaultsOfTheProto) {
  const v1::RunConfig config = Completed(kSmallModel);
  ExpectHas(config, R"(
      run_name: "run"
      model { kv_heads: 4 head_dim: 16 mlp: SWIGLU qk_norm: false rope_theta: 10000
              norm_epsilon: 1e-5 }
      train { steps: 1000 batch_sequences: 8 micro_batch_sequences: 8 optimizer: ADAMW
              weight_decay: 0.1 warmup_steps: 50 final_learning_rate_fraction: 0.1
              evaluation_sequences: 32 }
      sync { contribution: PARAMETER_DELTA pattern: STRIDED fragments: 1 steps_between_syncs: 100
             codec_up: FP32 max_overlap_steps: 0 keep_in_flight: 0 }
      outer { optimizer: NESTEROV learning_rate: 0.4 momentum: 0.9 merge: MEAN }
      membership { start_workers: 2 max_workers: 8 quorum: 1 lease_ms: 10000 weighting: TOKENS })");
  EXPECT_FALSE(config.outer().has_beta1() || config.outer().has_trim());
  EXPECT_FALSE(config.sync().has_error_feedback_decay());
}

TEST(CompleteRunConfig, DefaultsFollowTheFieldsTheyDependOn) {
  for (const auto& [settings, follows] : {
           std::pair("train { optimizer: MUON }", "train { weight_decay: 0.01 }"),
           {"train { steps: 400 }", "train { warmup_steps: 20 }"},
           {"outer { optimizer: SGD }", "outer { momentum: 0 }"},
           {"outer { optimizer: ADAM beta2: 0.999 }",
            "outer { learning_rate: 1e-3 momentum: 0 beta1: 0.9 beta2: 0.999 epsilon: 1e-6 }"},
           {"outer { merge: TRIMMED_MEAN }", "outer { trim: 1 }"},
           {"outer { merge: TRIMMED_MEAN trim: 0 }", "outer { trim: 0 }"},
           {"sync { codec_up: LM2 error_feedback: true }", "sync { error_feedback_decay: 1 }"},
           {"membership { start_workers: 20 }", "membership { max_workers: 20 }"},
       }) {
    ExpectHas(Completed(kSmallModel + std::string(settings)), follows);
  }
}

TEST(CompleteRunConfig, FieldsBesideAModelPresetOverrideIt) {
  ExpectHas(
      Completed("model { preset: 'tiny-1m' layers: 2 heads: 2 sequence_length: 64 }"),
      "model { layers: 2 heads: 2 head_dim: 64 sequence_length: 64 width: 128 qk_norm: true }");
}

TEST(CompleteRunConfig, CompletingTwiceChangesNothing) {
  for (const std::string& name : RunPresetNames()) {
    for (const char* model : {kSmallModel, "model { preset: 'tiny-1m' qk_norm: false }",
                              "model { preset: 'paper-35m' kv_heads: 2 }"}) {
      v1::RunConfig config = Completed(model, *RunPreset(name));
      const std::string once = FormatRunConfig(config);
      const auto warnings = CompleteRunConfig(config).value();
      EXPECT_EQ(FormatRunConfig(config), once);
    }
  }
}

// A run directory remembers this hash, and a worker compares it at the join.
TEST(RunConfigHash, KeepsItsValueAndSeesEveryField) {
  const v1::RunConfig config = Completed(
      "model { preset: 'tiny-1m' } sync { steps_between_syncs: 30 codec_up: INT4 codec_down: INT4 "
      "error_feedback: false }",
      *RunPreset("best"));
  EXPECT_EQ(RunConfigHash(config), 0x1ff1df78e14c4b77U);
  for (const char* change :
       {"run_name: 'other'", "train { seed: 1 }", "sync { overlap_steps: 0 }",
        "outer { learning_rate: 0.5 }", "membership { grace_ms: 1 }", "model { z_loss: 0.001 }"}) {
    EXPECT_NE(RunConfigHash(Parsed(change, config)), RunConfigHash(config)) << change;
  }
}

// The example of docs/formats.md: whoever writes the text by its rules gets this hash.
TEST(RunConfigHash, IsThatOfTheTextWhoseRulesThePageStates) {
  const char* const text = R"(train {
  steps: 1000
  learning_rate: 0.001
  epsilon: 1e-08
  weight_decay: 0
}
sync {
  pattern: STRIDED
  fragments: 1
}
tensors {
  tensor {
    name: "h.0/caf\303\251"
    shape: 64
    shape: 3
  }
  tensor {
    name: "scale"
  }
}
)";
  const v1::RunConfig config = Parsed(text);
  EXPECT_EQ(FormatRunConfig(config), text);
  EXPECT_EQ(RunConfigHash(config), 0x7d01e3b5dbe8df83U);
  EXPECT_EQ(FragmentPlan::Create(config)->hash(), 0xd9419e014e377ca9U);
}

TEST(MaxOverlapSteps, IsTheOverlapUnlessItMayGrow) {
  EXPECT_EQ(MaxOverlapSteps(Parsed("sync { overlap_steps: 3 }").sync()), 3);
  EXPECT_EQ(MaxOverlapSteps(Parsed("sync { overlap_steps: 3 max_overlap_steps: 9 }").sync()), 9);
}

TEST(ParseRunConfig, ACodecThatIsGoneIsRefusedByItsName) {
  EXPECT_THAT(ParseRunConfig("sync { codec_up: TOPK2 error_feedback: true }", "old.textproto"),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("old.textproto:1:"),
                                               HasSubstr("TOPK2 is gone"), HasSubstr("LM2"))));
}

TEST(CheckName, TakesLettersDigitsAndThreeSigns) {
  for (const char* name : {"a", "site-1", "EU_west.2", "0"}) {
    EXPECT_TRUE(CheckName("worker id", name).ok()) << name;
  }
  EXPECT_TRUE(CheckName("worker id", std::string(64, 'x')).ok());
  for (const std::string& name :
       {std::string(), std::string(65, 'x'), std::string("a b"), std::string("a/b"),
        std::string("\xc3\xa9"), std::string("a\0b", 3), std::string("a\n")}) {
    EXPECT_THAT(CheckName("worker id", name),
                StatusIs(kInvalidArgument, HasSubstr("worker id must be")))
        << name;
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
    const auto model = ModelPreset(name).value();
    EXPECT_EQ(model.mlp_width(), mlp_width) << name;
    EXPECT_EQ(model.layers(), layers) << name;
    EXPECT_EQ(model.heads(), heads) << name;
    EXPECT_EQ(model.width(), width) << name;
    EXPECT_EQ(model.vocabulary_size(), 32000) << name;
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

TEST(Presets, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const auto refused = [](const absl::Status& status, const std::vector<std::string>& known) {
    EXPECT_THAT(status, StatusIs(kInvalidArgument, HasSubstr("\"tiny-2m\"")));
    for (const std::string& name : known) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    }
  };
  refused(ModelPreset("tiny-2m").status(), ModelPresetNames());
  refused(RunPreset("tiny-2m").status(), RunPresetNames());
}

TEST(RunPreset, EveryNameCompletesWithEveryModelWithoutAWarning) {
  for (const std::string& run : RunPresetNames()) {
    for (const std::string& model : ModelPresetNames()) {
      SCOPED_TRACE(run + " with " + model);
      auto config = RunPreset(run).value();
      config.mutable_model()->set_preset(model);
      const auto warnings = CompleteRunConfig(config).value();
      EXPECT_THAT(warnings, IsEmpty());
    }
  }
}

TEST(RunPreset, HasTheSettingsThatItStandsFor) {
  const std::string tiny = "model { preset: 'tiny-1m' }";
  ExpectHas(Completed(tiny, *RunPreset("paper")), R"(
      train { optimizer: ADAMW }
      sync { pattern: STRIDED codec_up: E3M0 codec_down: E3M0 steps_between_syncs: 100 mixing: 0.5 }
      outer { optimizer: NESTEROV learning_rate: 0.4 momentum: 0.9 })");
  // Two bits in the bytes of four at H 30.
  ExpectHas(Completed(tiny, *RunPreset("best")), R"(
      train { optimizer: MUON }
      sync { codec_up: LM2 codec_down: LM2 error_feedback: true steps_between_syncs: 16 mixing: 0 }
      outer { optimizer: SGD learning_rate: 1 })");
  EXPECT_EQ(FormatRunConfig(*RunPreset("best")), FormatRunConfig(*RunPreset("streaming")));
  const v1::RunConfig gradients = Completed(tiny, *RunPreset("data-parallel"));
  ExpectHas(gradients, R"(
      sync { contribution: GRADIENT steps_between_syncs: 1 }
      outer { optimizer: ADAMW momentum: 0 })");
  EXPECT_EQ(gradients.outer().learning_rate(), gradients.train().learning_rate());
}

}  // namespace
}  // namespace causeway
