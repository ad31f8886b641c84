#include "common/files/model_folder.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/codec/codec_layout.h"
#include "common/files/safetensors.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/temporary_folder.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr char kModel[] =
    "model { vocabulary_size: 200 layers: 2 width: 16 heads: 2 mlp_width: 24 untied_head: true "
    "sequence_length: 8 }";

class ModelFolderTest : public testing::Test {
 protected:
  ModelFolderTest() : config_(Complete(kModel)), plan_(*FragmentPlan::Create(config_)) {
    values_.resize(static_cast<size_t>(plan_.arena_size()));
    for (const PlacedTensor& tensor : plan_.tensors()) {
      const bool padded =
          tensor.info.role == TensorRole::kEmbedding || tensor.info.role == TensorRole::kHead;
      const int64_t size = padded ? 200 * tensor.info.cols : tensor.info.size();
      for (int64_t i = 0; i < size; ++i) {
        values_[static_cast<size_t>(tensor.offset + i)] = 0.37F * static_cast<float>(i % 101) - 9;
      }
    }
  }

  static v1::RunConfig Complete(const std::string& text) {
    v1::RunConfig config = *ParseRunConfig(text, "test");
    EXPECT_TRUE(CompleteRunConfig(config).ok());
    return config;
  }
  absl::Status Write(const ModelFolderOptions& options = {}) {
    return ReplaceModelFolder(config_, plan_, values_, Model(), options);
  }
  std::string Model() const { return folder_.File("model"); }
  std::string ErrorOfReading() {
    const absl::StatusOr<ModelFolder> read = ReadModelFolder(files_, Model());
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
    EXPECT_THAT(read.status().message(), HasSubstr(Model()));
    return std::string(read.status().message());
  }
  // Writes the folder anew with one tensor changed, or left out where `dtype` is empty.
  void Change(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
              std::vector<uint8_t> bytes) {
    const SafetensorsFolder folder = *SafetensorsFolder::Open(files_, Model());
    std::vector<TensorSource> sources;
    const auto add = [&](const std::string& of, const std::string& type,
                         std::vector<int64_t> dimensions, std::vector<uint8_t> content) {
      const uint64_t size = content.size();
      sources.push_back(
          {.name = of,
           .dtype = type,
           .shape = std::move(dimensions),
           .bytes = size,
           .read = [content = std::move(content)](uint64_t begin, std::span<uint8_t> out) {
             std::memcpy(out.data(), content.data() + begin, out.size());
           }});
    };
    for (const auto& [of, tensor] : folder.tensors()) {
      if (of == name) continue;
      add(of, tensor.dtype, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()});
    }
    if (!dtype.empty()) add(name, dtype, std::move(shape), std::move(bytes));
    ASSERT_TRUE(WriteSafetensors(files_, Model(), sources, 1 << 30).ok());
  }
  std::vector<float> Tensor(const std::vector<float>& arena, const std::string& name) const {
    const PlacedTensor* const tensor = plan_.Find(name);
    const auto begin = arena.begin() + tensor->offset;
    return {begin, begin + tensor->info.size()};
  }

  FileSystem& files_ = *FileSystem::Real();
  TemporaryFolder folder_;
  const v1::RunConfig config_;
  const FragmentPlan plan_;
  std::vector<float> values_;
};

TEST_F(ModelFolderTest, ComesBackWithItsBitsAndWithoutTheVocabularysPadding) {
  for (const uint64_t max_file_bytes : {uint64_t{1} << 30, uint64_t{5000}}) {
    ASSERT_TRUE(Write({.max_file_bytes = max_file_bytes}).ok());
    const SafetensorsFolder folder = *SafetensorsFolder::Open(files_, Model());
    EXPECT_EQ(folder.tensors().size(), plan_.tensors().size());
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      EXPECT_THAT(folder.tensors().at(name).shape, testing::ElementsAre(200, 16));
    }
    const auto read = ReadModelFolder(files_, Model()).value();
    EXPECT_EQ(read.config.model().SerializeAsString(), config_.model().SerializeAsString());
    EXPECT_EQ(read.values, values_);
  }
  EXPECT_GT(files_.List(Model())->size(), 4u);
}

TEST_F(ModelFolderTest, HalfPrecisionRoundsToNearestAndIsReadExactly) {
  ASSERT_TRUE(Write({.bf16 = true}).ok());
  const auto read = ReadModelFolder(files_, Model()).value();
  for (size_t i = 0; i < values_.size(); ++i) {
    ASSERT_EQ(read.values[i], Bf16ToFloat(Bf16Nearest(values_[i])));
  }
  // fp16: 1, -2, the largest, the smallest normal and the smallest of all, and zero.
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x8000};
  std::vector<uint8_t> bytes(32);
  std::memcpy(bytes.data(), halves.data(), 12);
  Change("model.norm.weight", "F16", {16}, bytes);
  const auto wide = ReadModelFolder(files_, Model()).value();
  const std::vector<float> norm = Tensor(wide.values, "model.norm.weight");
  EXPECT_THAT((std::vector(norm.begin(), norm.begin() + 6)),
              testing::ElementsAre(1, -2, 65504, std::ldexp(1.0F, -14), std::ldexp(1.0F, -24), 0));
  bytes[1] = 0x7c;
  bytes[0] = 0;
  Change("model.norm.weight", "F16", {16}, bytes);
  EXPECT_THAT(ErrorOfReading(), HasSubstr("model.norm.weight has the value inf at index 0"));
}

TEST_F(ModelFolderTest, WhatIsNotTheModelsIsRefusedByName) {
  ASSERT_TRUE(Write().ok());
  Change("model.norm.weight", "F32", {8}, std::vector<uint8_t>(32));
  EXPECT_THAT(ErrorOfReading(),
              HasSubstr("model.norm.weight is [8]; its model.textproto takes [16]"));
  Change("model.norm.weight", "I32", {16}, std::vector<uint8_t>(64));
  EXPECT_THAT(ErrorOfReading(), HasSubstr("is I32; F32, BF16 and F16 are read"));
  Change("model.norm.weight", "", {}, {});
  EXPECT_THAT(ErrorOfReading(), HasSubstr("has a tensor model.norm.weight [16], the given"));
  Change("model.norm.weight", "F32", {16}, std::vector<uint8_t>(64));
  ASSERT_TRUE(ReadModelFolder(files_, Model()).ok());
  Change("extra", "F32", {1}, std::vector<uint8_t>(4));
  EXPECT_THAT(ErrorOfReading(), HasSubstr("the given parameters have a tensor extra"));
  const std::string path = JoinPath(Model(), kModelFile);
  for (const auto& [text, said] :
       {std::pair("model { layers: x }", "Expected integer"),
        std::pair("model { layers: -1 }", "layers"),
        std::pair("tensors { tensor { name: 'a' } }", "must hold a model")}) {
    WriteText(path, text);
    EXPECT_THAT(ErrorOfReading(), HasSubstr(said));
  }
}

TEST_F(ModelFolderTest, IsReplacedOnlyWhenAskedAndOtherFilesStay) {
  ASSERT_TRUE(Write({.max_file_bytes = 5000}).ok());
  WriteText(JoinPath(Model(), "notes"), "mine");
  EXPECT_THAT(CheckModelFolder(Model(), false).message(),
              HasSubstr("holds a model already (model-00001-of-"));
  EXPECT_TRUE(CheckModelFolder(Model(), true).ok());
  EXPECT_THAT(CheckModelFolder(JoinPath(Model(), "notes"), true).message(), HasSubstr("is a file"));
  EXPECT_TRUE(CheckModelFolder(folder_.File("none"), false).ok());
  ASSERT_TRUE(Write().ok());
  EXPECT_THAT(*files_.List(Model()),
              UnorderedElementsAre("model.safetensors", "model.textproto", "notes"));
}

TEST_F(ModelFolderTest, ARunOfTensorsHasThemAlone) {
  const v1::RunConfig config = Complete("tensors { tensor { name: 'a' shape: 3 } }");
  const FragmentPlan plan = *FragmentPlan::Create(config);
  std::vector<float> values(static_cast<size_t>(plan.arena_size()));
  values[0] = 1;
  values[1] = std::numeric_limits<float>::denorm_min();
  values[2] = -0.0F;
  ASSERT_TRUE(WriteModelFolder(files_, config, plan, values, Model(), {}).ok());
  EXPECT_THAT(*files_.List(Model()), testing::ElementsAre("model.safetensors"));
  EXPECT_FALSE(IsModelFolder(files_, Model()));
  const auto read = ReadWeights(files_, Model(), plan).value();
  EXPECT_EQ(std::memcmp(read.data(), values.data(), values.size() * sizeof(float)), 0);
  const FragmentPlan other =
      *FragmentPlan::Create(Complete("tensors { tensor { name: 'a' shape: 4 } }"));
  EXPECT_THAT(ReadWeights(files_, Model(), other).status().message(),
              HasSubstr("a is [4] in the run's model, but [3] in the given parameters"));
}

}  // namespace
}  // namespace causeway
