// Runs of any model: the table of tensors, its blocks, its plan, and what such a run cannot be.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "common/params/tensor_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// GPT-2's names, with a convolution, a scalar and a vector among them.
constexpr char kTensors[] = R"(
  tensors {
    tensor { name: "wte.weight" shape: [100, 32] }
    tensor { name: "h.0.attn.weight" shape: [96, 32] }
    tensor { name: "h.0.attn.bias" shape: 96 }
    tensor { name: "h.2.conv.weight" shape: [16, 4, 3, 3] }
    tensor { name: "h.10.mlp.weight" shape: [128, 32] }
    tensor { name: "ln_f.weight" shape: 32 }
    tensor { name: "temperature" }
  }
)";

v1::RunConfig TensorsRun(const std::string& sync) {
  return Completed(absl::StrCat(kTensors, "sync { ", sync, " }"));
}

std::string TensorText(const std::string& rest) {
  return absl::StrCat("tensors { tensor { ", rest, " } }");
}

std::vector<std::string> NamesOf(const FragmentPlan& plan, int fragment) {
  std::vector<std::string> names;
  for (const PlacedTensor& tensor : plan.tensors()) {
    if (tensor.offset >= plan.range(fragment).begin && tensor.offset < plan.range(fragment).end) {
      names.push_back(tensor.info.name);
    }
  }
  return names;
}

TEST(AnyModel, TensorsKeepTheTablesOrderAndTheirWholeShapes) {
  const std::vector<TensorInfo> tensors = RunTensors(TensorsRun(""));
  ASSERT_EQ(tensors.size(), 7U);
  EXPECT_EQ(tensors[0].name, "wte.weight");
  EXPECT_EQ(tensors[3].name, "h.2.conv.weight");
  EXPECT_THAT(tensors[3].shape, ElementsAre(16, 4, 3, 3));
  EXPECT_EQ(tensors[3].rows, 16);
  EXPECT_EQ(tensors[3].cols, 36);
  EXPECT_EQ(ShapeText(tensors[3]), "[16, 4, 3, 3]");
  EXPECT_EQ(tensors[2].rows, 96);
  EXPECT_EQ(tensors[2].cols, 1);
  EXPECT_TRUE(tensors[6].shape.empty());
  EXPECT_EQ(tensors[6].size(), 1);
  EXPECT_EQ(FragmentPlan::Create(TensorsRun(""))->parameters(),
            100 * 32 + 96 * 32 + 96 + 16 * 36 + 128 * 32 + 32 + 1);
}

TEST(AnyModel, TheTableOfAModelsTensorsIsTheSameRun) {
  const v1::RunConfig own = Completed(kSmallModel);
  v1::RunConfig tensors;
  *tensors.mutable_tensors() = MakeTensorTable(BuildTensorTable(own.model()));
  ASSERT_TRUE(CompleteRunConfig(tensors).ok());
  for (const char* sync : {"fragments: 1", "fragments: 3", "fragments: 3 pattern: SEQUENTIAL",
                           "fragments: 5 pattern: BALANCED"}) {
    const v1::SyncConfig cut = Parsed(absl::StrCat("sync { ", sync, " }")).sync();
    const auto of_model = FragmentPlan::Create(BuildTensorTable(own.model()), cut);
    const auto of_table = FragmentPlan::Create(RunTensors(tensors), cut);
    ASSERT_TRUE(of_model.ok() && of_table.ok()) << of_model.status() << of_table.status();
    EXPECT_EQ(of_model->hash(), of_table->hash()) << sync;
  }
}

TEST(AnyModel, BlocksAreTheFirstNumbersOfTheNamesInAscendingOrder) {
  const auto blocks_of = [](const std::vector<std::string>& names) {
    v1::RunConfig config;
    for (const std::string& name : names) {
      v1::TensorTable::Tensor& tensor = *config.mutable_tensors()->add_tensor();
      tensor.set_name(name);
      tensor.add_shape(64);
    }
    std::vector<int> blocks;
    for (const TensorInfo& tensor : RunTensors(config)) blocks.push_back(tensor.block);
    return blocks;
  };
  EXPECT_THAT(blocks_of({"h.2.w", "wte", "h.0.w", "h.10.w", "h.2.b"}), ElementsAre(1, -1, 0, 2, 1));
  EXPECT_THAT(blocks_of({"encoder.block.1.layer.0.k", "encoder.block.0.layer.1.k"}),
              ElementsAre(1, 0));
  EXPECT_THAT(blocks_of({"params/layers/3/kernel", "params/embed2/kernel", "params/layers/7/w"}),
              ElementsAre(0, -1, 1));
  EXPECT_THAT(blocks_of({"0.weight", "2.weight", "layer-1.w", "h.1a.w", "h.-1.w", "h..w"}),
              ElementsAre(0, 1, -1, -1, -1, -1));
  // A number of more digits than any model has layers is a name.
  EXPECT_THAT(blocks_of({"x.4294967296.w", "x.999999999.w"}), ElementsAre(-1, 0));
}

TEST(AnyModel, PatternsKeepBlocksWhole) {
  const auto strided = FragmentPlan::Create(TensorsRun("fragments: 2")).value();
  ASSERT_EQ(strided.fragments(), 3);
  EXPECT_THAT(NamesOf(strided, 0),
              ElementsAre("h.0.attn.weight", "h.0.attn.bias", "h.10.mlp.weight"));
  EXPECT_THAT(NamesOf(strided, 1), ElementsAre("h.2.conv.weight"));
  EXPECT_THAT(NamesOf(strided, 2), ElementsAre("wte.weight", "ln_f.weight", "temperature"));
  const auto sequential =
      FragmentPlan::Create(TensorsRun("fragments: 2 pattern: SEQUENTIAL")).value();
  EXPECT_THAT(NamesOf(sequential, 0),
              ElementsAre("h.0.attn.weight", "h.0.attn.bias", "h.2.conv.weight"));
  EXPECT_THAT(NamesOf(sequential, 1), ElementsAre("h.10.mlp.weight"));
}

TEST(AnyModel, BalancedNeedsNoBlocks) {
  const v1::RunConfig config = Completed(TensorText("name: 'w' shape: [64, 64]") +
                                         " sync { fragments: 4 pattern: BALANCED }");
  const auto plan = FragmentPlan::Create(config).value();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(plan.range(i).size(), 1024);
}

TEST(AnyModel, PlanHashesHaveStoredValues) {
  EXPECT_EQ(FragmentPlan::Create(TensorsRun("fragments: 2"))->hash(), 0x46b1925749b87093U);
  EXPECT_EQ(FragmentPlan::Create(TensorsRun("fragments: 3 pattern: BALANCED"))->hash(),
            0x44d351bea5f30a7aU);
}

TEST(AnyModel, PlansOfOtherShapesHaveOtherHashes) {
  const auto hash = [](const std::string& shape) {
    return FragmentPlan::Create(Completed(TensorText("name: 'w' shape: " + shape)))->hash();
  };
  EXPECT_NE(hash("[4, 2, 8]"), hash("[4, 8, 2]"));
  EXPECT_NE(hash("[4, 2, 8]"), hash("[4, 16]"));
  EXPECT_EQ(hash("[4, 16]"), hash("[4, 16]"));
}

TEST(AnyModel, AModelMayStillComeAndAPresetsInnerOptimizerIsTheTrainersMatter) {
  v1::RunConfig later = Parsed("run_name: 'r' sync { fragments: 3 }");
  ASSERT_TRUE(CompleteRunConfig(later, ModelIs::kStillToCome).ok());
  EXPECT_FALSE(later.has_model());
  EXPECT_FALSE(later.has_tensors());
  EXPECT_EQ(later.sync().steps_between_syncs(), 100);
  EXPECT_EQ(CompleteRunConfig(later = Parsed(kTensors, *RunPreset("best"))).status(),
            absl::OkStatus());
}

TEST(AnyModel, CompletingTwiceChangesNothing) {
  const v1::RunConfig once = TensorsRun("fragments: 2");
  v1::RunConfig twice = Parsed(FormatRunConfig(once));
  ASSERT_TRUE(CompleteRunConfig(twice).ok());
  EXPECT_EQ(FormatRunConfig(twice), FormatRunConfig(once));
  EXPECT_FALSE(once.has_model());
  EXPECT_EQ(once.train().steps(), 1000);
}

TEST(AnyModel, ATableThatDoesNotFitAMessageIsRefused) {
  v1::RunConfig config;
  for (int i = 0; i < 1400; ++i) {
    v1::TensorTable::Tensor& tensor = *config.mutable_tensors()->add_tensor();
    tensor.set_name(absl::StrCat(i, std::string(500, 'x')));
    tensor.add_shape(1);
  }
  EXPECT_THAT(std::string(CompleteRunConfig(config).status().message()),
              HasSubstr("at most 655360 bytes"));
}

TEST(AnyModel, OwnModelsAreToldFromOthers) {
  EXPECT_TRUE(CheckOwnModel(Completed(kSmallModel)).ok());
  EXPECT_THAT(CheckOwnModel(TensorsRun("")),
              StatusIs(kFailedPrecondition, AllOf(HasSubstr("7 of them, first \"wte.weight\""),
                                                  HasSubstr("docs/pytorch.md"))));
}

TEST(AnyModel, NaturalOrderTakesNumbersByValue) {
  EXPECT_TRUE(NaturalLess("h.2.w", "h.10.w"));
  EXPECT_FALSE(NaturalLess("h.10.w", "h.2.w"));
  EXPECT_FALSE(NaturalLess("h.2.w", "h.2.w"));
  EXPECT_TRUE(NaturalLess("h.1.w", "h.1.x"));
  EXPECT_TRUE(NaturalLess("h.9", "h.x"));
  EXPECT_TRUE(NaturalLess("h.2", "h.2.w"));
  EXPECT_NE(NaturalLess("h.02.w", "h.2.w"), NaturalLess("h.2.w", "h.02.w"));
}

}  // namespace
}  // namespace causeway
