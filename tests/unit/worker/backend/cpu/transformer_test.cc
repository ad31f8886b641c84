// The forward pass against its definition, float against double, generation, and what a caller may
// rely on.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "tests/unit/worker/backend/cpu/reference_transformer.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {
namespace {

std::vector<std::string> OddShapes() {
  return {
      "",
      "mlp: GELU z_loss: 0.02",
      "kv_heads: 1 qk_norm: true",
      "kv_heads: 2 untied_head: true",
      "sequence_length: 1",
      "vocabulary_size: 128 sequence_length: 2",
      "vocabulary_size: 1 layers: 1 width: 2 heads: 1 kv_heads: 1 head_dim: 2 mlp_width: 1",
      "vocabulary_size: 129 width: 18 heads: 8 kv_heads: 1 head_dim: 2 mlp_width: 7 qk_norm: true "
      "sequence_length: 67",
      "layers: 1 width: 8 heads: 2 kv_heads: 2 head_dim: 4 mlp_width: 12 sequence_length: 517",
      std::string("kv_heads: 2 sequence_length: 40 qkv_bias: true ") + kRopeScaling,
      "untied_head: true output_bias: true mlp_bias: true",
      "mlp: GELU sequence_length: 9 qkv_bias: true output_bias: true mlp_bias: true layer_norm: "
      "true learned_positions: 13",
  };
}

TEST(CpuTransformerTest, LossIsThatOfTheDefinition) {
  for (const std::string& shape : OddShapes()) {
    auto [model, plan, parameters, inputs, targets] = MakeCase<double>(shape, 2);
    targets[0] = -1;
    const ReferenceLoss expected = ComputeReferenceLoss(model, plan, parameters, inputs, targets);
    const TokenLoss loss = RunPass(model, parameters, inputs, targets).loss;
    EXPECT_NEAR(loss.total, expected.total, 1e-11) << model.ShortDebugString();
    EXPECT_NEAR(loss.cross_entropy, expected.cross_entropy, 1e-11) << model.ShortDebugString();
    EXPECT_EQ(loss.tokens, static_cast<int64_t>(targets.size()) - 1);
  }
}

TEST(CpuTransformerTest, FloatAgreesWithDouble) {
  for (const std::string& shape : OddShapes()) {
    const v1::ModelConfig model = MakeModel(shape);
    const FragmentPlan plan = MakePlan(model);
    const auto inputs = RandomTokens(model, 2, 2);
    const auto targets = RandomTokens(model, 2, 3);
    const auto exact = RunPass(model, RandomParameters<double>(plan, 1), inputs, targets);
    const auto single = RunPass(model, RandomParameters<float>(plan, 1), inputs, targets);
    EXPECT_NEAR(single.loss.total, exact.loss.total, 1e-5) << model.ShortDebugString();
    if (model.vocabulary_size() == 1) continue;  // Its loss is 0 whatever the parameters are.
    EXPECT_LT(RelativeDistance(single.gradients, exact.gradients), 2e-5)
        << model.ShortDebugString();
  }
}

TEST(CpuTransformerTest, LossEvaluatesFewerWindowsThanTheMicroBatchHolds) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<double>("z_loss: 0.1", 1);
  ThreadPool pool(2);
  CpuTransformer<double> transformer(model, plan, 3, &pool);
  EXPECT_NEAR(transformer.Loss(parameters, inputs, targets),
              ComputeReferenceLoss(model, plan, parameters, inputs, targets).cross_entropy, 1e-11);
}

TEST(CpuTransformerTest, LogitsOfAnyPrefixAreThoseOfTheDefinition) {
  const v1::ModelConfig model = MakeModel("kv_heads: 2 qk_norm: true sequence_length: 70");
  const FragmentPlan plan = MakePlan(model);
  const auto parameters = RandomParameters<double>(plan, 1);
  const auto tokens = RandomTokens(model, 1, 2);
  const auto expected = ReferenceLogits(model, plan, parameters, tokens);
  ThreadPool pool(2);
  CpuTransformer<double> transformer(model, plan, 1, &pool);
  std::vector<double> logits(static_cast<size_t>(model.vocabulary_size()));
  for (const size_t length : {1U, 2U, 63U, 64U, 65U, 70U}) {
    transformer.Logits(parameters, std::span(tokens).first(length), logits);
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], expected[length - 1][i], 1e-11) << "after " << length << " tokens";
    }
  }
}

TEST(CpuTransformerTest, AlignmentGapsAreZeroAndStaySo) {
  const v1::ModelConfig model = MakeModel("untied_head: true");
  const FragmentPlan plan = MakePlan(model);
  const auto inputs = RandomTokens(model, 1, 2);
  const auto targets = RandomTokens(model, 1, 3);
  const auto gradients =
      RunPass(model, RandomParameters<float>(plan, 1), inputs, targets).gradients;
  std::vector<bool> in_tensor(gradients.size());
  for (const PlacedTensor& tensor : plan.tensors()) {
    for (int64_t i = 0; i < tensor.info.size(); ++i) {
      in_tensor[static_cast<size_t>(tensor.offset + i)] = true;
    }
  }
  int gaps = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (in_tensor[i]) continue;
    ++gaps;
    ASSERT_EQ(gradients[i], 0) << i;
  }
  EXPECT_GT(gaps, 0) << "the test's shapes must leave gaps";
}

TEST(CpuTransformerTest, BatchWithoutTargetsHasNoLossAndNoGradient) {
  const v1::ModelConfig model = MakeModel("z_loss: 0.1");
  const FragmentPlan plan = MakePlan(model);
  const auto inputs = RandomTokens(model, 1, 2);
  const std::vector<int32_t> targets(inputs.size(), -1);
  const auto pass = RunPass(model, RandomParameters<float>(plan, 1), inputs, targets);
  EXPECT_EQ(pass.loss.total, 0);
  EXPECT_EQ(pass.loss.tokens, 0);
  EXPECT_EQ(pass.gradients, std::vector<float>(pass.gradients.size(), 0.0F));
}

TEST(CpuTransformerTest, AnyNumberOfThreadsGivesTheSameBits) {
  // Several tiles, chunks and blocks of every kind.
  auto [model, plan, parameters, inputs, targets] = MakeCase<float>(
      "vocabulary_size: 1500 layers: 2 width: 72 heads: 6 kv_heads: 2 head_dim: 12 mlp_width: 100 "
      "qk_norm: true z_loss: 1e-3 sequence_length: 301",
      3);
  const auto expected = RunPass(model, parameters, inputs, targets, 1);
  for (const int threads : {2, 3}) {
    const auto pass = RunPass(model, parameters, inputs, targets, threads);
    EXPECT_EQ(pass.loss.total, expected.loss.total);
    EXPECT_EQ(pass.gradients, expected.gradients) << threads << " threads";
  }
}

TEST(CpuTransformerTest, RepeatingACallGivesTheSameBits) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<float>("qk_norm: true", 2);
  ThreadPool pool(2);
  CpuTransformer<float> transformer(model, plan, 2, &pool);
  std::vector<float> first(parameters.size()), second(parameters.size());
  std::vector<float> logits(static_cast<size_t>(model.vocabulary_size()));
  transformer.ForwardBackward(parameters, inputs, targets, 1.0F, false, first);
  // Other work in between leaves nothing behind.
  transformer.Loss(parameters, targets, inputs);
  transformer.Logits(parameters, std::span(inputs).first(3), logits);
  transformer.ForwardBackward(parameters, inputs, targets, 1.0F, false, second);
  EXPECT_EQ(first, second);
}

TEST(CpuTransformerDeathTest, TokenOutsideTheVocabularyEndsTheProgram) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const v1::ModelConfig model = MakeModel();
  const FragmentPlan plan = MakePlan(model);
  auto inputs = RandomTokens(model, 1, 2);
  const auto targets = RandomTokens(model, 1, 3);
  inputs[3] = model.vocabulary_size();
  EXPECT_DEATH(RunPass(model, RandomParameters<float>(plan, 1), inputs, targets),
               "token 37 is outside the vocabulary of 37");
}

}  // namespace
}  // namespace causeway::worker
