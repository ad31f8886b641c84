#include <cmath>
#include <numbers>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/params/tensor_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Lines(const std::vector<TensorInfo>& table) {
  std::vector<std::string> lines;
  for (const TensorInfo& tensor : table) {
    lines.push_back(tensor.cols == 1
                        ? absl::StrCat(tensor.name, " [", tensor.rows, "]")
                        : absl::StrCat(tensor.name, " [", tensor.rows, ", ", tensor.cols, "]"));
  }
  return lines;
}

std::vector<TensorInfo> Table(const std::string& model) {
  return BuildTensorTable(Completed(absl::StrCat("model { ", model, " }")).model());
}

const TensorInfo& Named(const std::vector<TensorInfo>& table, const std::string& name) {
  for (const TensorInfo& tensor : table) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return table.front();
}

TEST(TensorTable, HasHuggingFaceNamesAndShapesInModelOrder) {
  EXPECT_THAT(Lines(Table("vocabulary_size: 300 layers: 1 width: 64 heads: 4 kv_heads: 2 "
                          "head_dim: 32 mlp_width: 192 qk_norm: true untied_head: true")),
              ElementsAre("model.embed_tokens.weight [384, 64]",
                          "model.layers.0.input_layernorm.weight [64]",
                          "model.layers.0.self_attn.q_proj.weight [128, 64]",
                          "model.layers.0.self_attn.k_proj.weight [64, 64]",
                          "model.layers.0.self_attn.v_proj.weight [64, 64]",
                          "model.layers.0.self_attn.q_norm.weight [32]",
                          "model.layers.0.self_attn.k_norm.weight [32]",
                          "model.layers.0.self_attn.o_proj.weight [64, 128]",
                          "model.layers.0.post_attention_layernorm.weight [64]",
                          "model.layers.0.mlp.gate_proj.weight [192, 64]",
                          "model.layers.0.mlp.up_proj.weight [192, 64]",
                          "model.layers.0.mlp.down_proj.weight [64, 192]",
                          "model.norm.weight [64]",  //
                          "lm_head.weight [384, 64]"));
}

TEST(TensorTable, GeluHasNoGateAndATiedModelNoHead) {
  EXPECT_THAT(
      Lines(Table("vocabulary_size: 128 layers: 1 width: 64 heads: 2 mlp_width: 256 "
                  "mlp: GELU")),
      ElementsAre("model.embed_tokens.weight [128, 64]",
                  "model.layers.0.input_layernorm.weight [64]",
                  "model.layers.0.self_attn.q_proj.weight [64, 64]",
                  "model.layers.0.self_attn.k_proj.weight [64, 64]",
                  "model.layers.0.self_attn.v_proj.weight [64, 64]",
                  "model.layers.0.self_attn.o_proj.weight [64, 64]",
                  "model.layers.0.post_attention_layernorm.weight [64]",
                  "model.layers.0.mlp.up_proj.weight [256, 64]",
                  "model.layers.0.mlp.down_proj.weight [64, 256]", "model.norm.weight [64]"));
}

TEST(TensorTable, BiasesStandBehindTheMatricesThatAreOneProduct) {
  const std::vector<TensorInfo> table = Table(
      "vocabulary_size: 128 layers: 1 width: 64 heads: 2 kv_heads: 1 mlp_width: 96 "
      "qkv_bias: true output_bias: true mlp_bias: true layer_norm: true "
      "sequence_length: 16 learned_positions: 32");
  EXPECT_THAT(
      Lines(table),
      ElementsAre(
          "model.embed_tokens.weight [128, 64]", "model.embed_positions.weight [32, 64]",
          "model.layers.0.input_layernorm.weight [64]", "model.layers.0.input_layernorm.bias [64]",
          "model.layers.0.self_attn.q_proj.weight [64, 64]",
          "model.layers.0.self_attn.k_proj.weight [32, 64]",
          "model.layers.0.self_attn.v_proj.weight [32, 64]",
          "model.layers.0.self_attn.q_proj.bias [64]", "model.layers.0.self_attn.k_proj.bias [32]",
          "model.layers.0.self_attn.v_proj.bias [32]",
          "model.layers.0.self_attn.o_proj.weight [64, 64]",
          "model.layers.0.self_attn.o_proj.bias [64]",
          "model.layers.0.post_attention_layernorm.weight [64]",
          "model.layers.0.post_attention_layernorm.bias [64]",
          "model.layers.0.mlp.gate_proj.weight [96, 64]",
          "model.layers.0.mlp.up_proj.weight [96, 64]", "model.layers.0.mlp.gate_proj.bias [96]",
          "model.layers.0.mlp.up_proj.bias [96]", "model.layers.0.mlp.down_proj.weight [64, 96]",
          "model.layers.0.mlp.down_proj.bias [64]", "model.norm.weight [64]",
          "model.norm.bias [64]"));
  EXPECT_EQ(Named(table, "model.norm.bias").role, TensorRole::kBias);
  EXPECT_EQ(Named(table, "model.embed_positions.weight").role, TensorRole::kPositions);
}

TEST(TensorTable, VocabularyIsPaddedToMultiplesOf128) {
  v1::ModelConfig model;
  for (const auto& [vocabulary, rows] : {std::pair(1, 128),
                                         {127, 128},
                                         {128, 128},
                                         {129, 256},
                                         {50257, 50304},
                                         {1 << 24, 1 << 24}}) {
    model.set_vocabulary_size(vocabulary);
    EXPECT_EQ(PaddedVocabulary(model), rows) << vocabulary;
  }
}

TEST(TensorTable, RolesBlocksAndDecayFollowTheKindOfTensor) {
  const std::vector<TensorInfo> table =
      Table("layers: 2 width: 64 heads: 2 mlp_width: 64 qk_norm: true untied_head: true");
  std::set<std::string> names;
  for (const TensorInfo& tensor : table) {
    SCOPED_TRACE(tensor.name);
    EXPECT_TRUE(names.insert(tensor.name).second);
    const bool norm = tensor.name.find("norm") != std::string::npos;
    EXPECT_EQ(tensor.is_matrix(), !norm);
    EXPECT_EQ(tensor.decays(), !norm);
    EXPECT_EQ(tensor.initial_stddev == 0, norm);
    const bool outside = tensor.name.find("layers.") == std::string::npos;
    EXPECT_EQ(tensor.block < 0, outside);
    EXPECT_EQ(tensor.role == TensorRole::kNorm, norm && !outside);
    EXPECT_EQ(tensor.role == TensorRole::kMatrix, !norm && !outside);
  }
  EXPECT_EQ(Named(table, "model.embed_tokens.weight").role, TensorRole::kEmbedding);
  EXPECT_EQ(Named(table, "lm_head.weight").role, TensorRole::kHead);
  EXPECT_EQ(Named(table, "model.norm.weight").role, TensorRole::kFinalNorm);
  EXPECT_EQ(Named(table, "model.layers.1.mlp.up_proj.weight").block, 1);
}

TEST(TensorTable, ProjectionsIntoTheResidualStreamStartSmallerWithDepth) {
  const std::vector<TensorInfo> table = Table("layers: 8 width: 64 heads: 2 mlp_width: 64");
  for (const char* name : {"self_attn.o_proj", "mlp.down_proj"}) {
    EXPECT_DOUBLE_EQ(Named(table, absl::StrCat("model.layers.5.", name, ".weight")).initial_stddev,
                     0.02 / 4);
  }
  for (const char* name : {"self_attn.q_proj", "mlp.up_proj", "mlp.gate_proj"}) {
    EXPECT_DOUBLE_EQ(Named(table, absl::StrCat("model.layers.5.", name, ".weight")).initial_stddev,
                     0.02);
  }
}

std::vector<double> Frequencies(const std::string& model) {
  return RopeFrequencies(
      Completed("model { vocabulary_size: 10 layers: 1 width: 8 heads: 1 mlp_width: 8 " + model +
                " }")
          .model());
}

TEST(RopeFrequencies, FallGeometricallyFromOne) {
  const std::vector<double> frequencies = Frequencies("rope_theta: 10000");
  ASSERT_EQ(frequencies.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(frequencies[i], std::pow(10000.0, -static_cast<double>(i) / 4));
  }
}

TEST(RopeFrequencies, ScalingStretchesLongWavesKeepsShortOnesAndBlendsBetween) {
  // Wavelengths 2 pi times 1, 10, 100 and 1000, against bounds of 62.8 and 628.
  const std::vector<double> plain = Frequencies("rope_theta: 10000");
  const std::vector<double> scaled = Frequencies(
      "rope_theta: 10000 rope_scaling { factor: 8 low_frequency_factor: 1 "
      "high_frequency_factor: 4 original_positions: 1257 }");
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_EQ(scaled[1], plain[1]);
  const double turns = 1257 * plain[2] / (2 * std::numbers::pi);
  const double kept = (turns - 1) / 3;
  EXPECT_NEAR(scaled[2], plain[2] * (kept + (1 - kept) / 8), 1e-15);
  EXPECT_DOUBLE_EQ(scaled[3], plain[3] / 8);
}

TEST(RopeFrequencies, LearnedPositionsTurnNothing) {
  for (const double frequency : Frequencies("sequence_length: 4 learned_positions: 4")) {
    EXPECT_EQ(frequency, 0);
  }
}

}  // namespace
}  // namespace causeway
