#include "worker/backend/cuda/cuda_transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "tests/unit/worker/backend/cuda/bf16_reference.h"
#include "tests/unit/worker/backend/cuda/transformer_rig.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kSmall[] =
    "vocabulary_size: 131 width: 64 heads: 2 kv_heads: 2 head_dim: 32 mlp_width: 88 "
    "sequence_length: 13";

struct Case {
  std::string name;
  std::string changes;
  bool documents = false;
};
void PrintTo(const Case& param, std::ostream* out) { *out << param.name; }

struct Small {
  explicit Small(const std::string& changes = "") : model(MakeModel(kSmall, changes)) {
    for (float& value : parameters) value = __bfloat162float(__float2bfloat16_rn(value));
  }
  const v1::ModelConfig model;
  const FragmentPlan plan = MakePlan(model);
  std::vector<float> parameters = RandomParameters<float>(plan, 1);  // As bf16 has them.
};

// Two windows; some positions have no target.
HostTokens Tokens(const v1::ModelConfig& model, bool documents, int sequences = 2,
                  uint32_t seed = 3) {
  HostTokens tokens = {
      RandomTokens(model, sequences, seed), RandomTokens(model, sequences, seed + 1), {}};
  tokens.targets[1] = -1;
  if (documents) {
    for (size_t i = 0; i < tokens.inputs.size(); ++i) {
      const auto position = static_cast<int32_t>(i) % model.sequence_length();
      tokens.document_starts.push_back(position < 4 ? 0 : position < 5 ? 4 : 5);
    }
  }
  return tokens;
}

std::vector<double> Part(const std::vector<double>& arena, const PlacedTensor& tensor) {
  const auto begin = arena.begin() + tensor.offset;
  return {begin, begin + tensor.info.size()};
}

// |a - b|; of none, from zero.
double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(a[i] - (b.empty() ? 0 : b[i]), 2);
  return std::sqrt(squares);
}

class CudaTransformerCases : public ::testing::TestWithParam<Case> {};

TEST_P(CudaTransformerCases, ErrsNoMoreThanBf16Does) {
  const auto& [model, plan, parameters] = Small(GetParam().changes);
  const std::vector<double> exact_parameters(parameters.begin(), parameters.end());
  const HostTokens tokens = Tokens(model, GetParam().documents);

  TransformerRig rig(model, plan, parameters, {.micro_batch_sequences = 2});
  const TransformerRig::Result result = rig.Run({tokens});
  const std::vector<double> gradients(result.gradients.begin(), result.gradients.end());

  ThreadPool pool(1);
  CpuTransformer<double> transformer(model, plan, 2, &pool);
  std::vector<double> exact(parameters.size());
  const TokenLoss loss = transformer.ForwardBackward(
      exact_parameters, tokens.inputs, tokens.targets, 1.0, false, exact, tokens.document_starts);
  const ReferencePass rounded = RunBf16Reference(model, plan, exact_parameters, tokens.inputs,
                                                 tokens.targets, tokens.document_starts);
  EXPECT_EQ(result.loss.targets, loss.tokens);
  EXPECT_NEAR(result.loss.cross_entropy, loss.cross_entropy,
              1.5 * std::abs(rounded.cross_entropy - loss.cross_entropy) + 2e-3);
  EXPECT_NEAR(rig.Loss(tokens, 2), loss.cross_entropy, 1e-2);
  for (const PlacedTensor& tensor : plan.tensors()) {
    const std::vector<double> expected = Part(exact, tensor);
    EXPECT_LT(Distance(Part(gradients, tensor), expected),
              1.5 * Distance(Part(rounded.gradients, tensor), expected) +
                  1e-3 * Distance(expected, {}) + 1e-6 * Distance(exact, {}))
        << tensor.info.name;
  }
  // The gaps between tensors stay zero.
  for (const ArenaGap& gap : plan.gaps()) {
    for (int64_t i = gap.begin; i < gap.end; ++i) {
      ASSERT_EQ(result.gradients[static_cast<size_t>(i)], 0.0F);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaTransformerCases,
    ::testing::Values(
        Case{"Llama", ""}, Case{"Qwen3", "qk_norm: true"},
        Case{"GroupedQueries", "heads: 4 kv_heads: 1"},
        Case{"Untied", "untied_head: true z_loss: 1e-2"}, Case{"ScaledRope", kRopeScaling},
        Case{"OneToken", "sequence_length: 1"}, Case{"Qwen2", "qkv_bias: true kv_heads: 1"},
        Case{"Gpt2",
             "mlp: GELU layer_norm: true learned_positions: 16 qkv_bias: true output_bias: true "
             "mlp_bias: true"},
        Case{"Documents", "qk_norm: true", true}),
    [](const auto& param) { return param.param.name; });

// How far results may be apart whose products have other shapes: cuBLASLt may sum them in another
// order, and then a rounding to bf16 falls differently here and there.
#ifdef CAUSEWAY_EMULATED_DEVICE
constexpr double kOtherShapes = 1e-6;
#else
constexpr double kOtherShapes = 1e-2;
#endif

TEST(CudaTransformer, MicroBatchesAddUpToTheirBatch) {
  const auto& [model, plan, parameters] = Small("untied_head: true");
  HostTokens whole = Tokens(model, false, 4);
  whole.targets[1] = 0;  // Means of means, so all windows count alike.
  std::vector<HostTokens> halves;
  const auto half = static_cast<ptrdiff_t>(whole.inputs.size() / 2);
  for (const ptrdiff_t begin : {ptrdiff_t{0}, half}) {
    halves.push_back({{whole.inputs.begin() + begin, whole.inputs.begin() + begin + half},
                      {whole.targets.begin() + begin, whole.targets.begin() + begin + half},
                      {}});
  }
  TransformerRig once(model, plan, parameters, {.micro_batch_sequences = 4});
  TransformerRig twice(model, plan, parameters, {.micro_batch_sequences = 2});
  const TransformerRig::Result expected = once.Run({whole});
  const TransformerRig::Result result = twice.Run(halves);
  EXPECT_NEAR(result.loss.cross_entropy, expected.loss.cross_entropy, kOtherShapes);
  // The gradient of the logits is rounded at another scale.
  EXPECT_LT(RelativeDistance(result.gradients, expected.gradients), 1e-2);
  EXPECT_EQ(twice.Run(halves, /*graphs=*/true).gradients, result.gradients);
}

TEST(CudaTransformer, TheHeadsChunksDoNotChangeTheResult) {
  const auto& [model, plan, parameters] = Small("sequence_length: 80");
  const HostTokens tokens = Tokens(model, false);
  TransformerRig whole(model, plan, parameters, {.micro_batch_sequences = 2});
  TransformerRig cut(model, plan, parameters, {.micro_batch_sequences = 2, .logits_bytes = 1});
  const TransformerRig::Result expected = whole.Run({tokens});
  const TransformerRig::Result result = cut.Run({tokens});
  EXPECT_NEAR(result.loss.cross_entropy, expected.loss.cross_entropy, kOtherShapes);
  // The head's gradient alone is summed in parts.
  EXPECT_LT(RelativeDistance(result.gradients, expected.gradients), kOtherShapes);
}

TEST(CudaTransformer, ShorterWindowsAreEvaluatedByPosition) {
  const auto& [model, plan, parameters] = Small();
  TransformerRig rig(model, plan, parameters, {.micro_batch_sequences = 2});
  const HostTokens tokens = {{1, 2, 3, 4, 5, 6}, {2, 3, -1, 5, 6, 7}, {}};
  std::vector<float> rows;
  rig.Loss(tokens, 2, &rows);
  // On the CPU, windows of a model that has no longer ones, with one target at a time.
  ThreadPool pool(1);
  v1::ModelConfig shorter = model;
  shorter.set_sequence_length(3);
  CpuTransformer<double> transformer(shorter, plan, 2, &pool);
  const std::vector<double> exact(parameters.begin(), parameters.end());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<int32_t> target(tokens.targets.size(), -1);
    target[i] = tokens.targets[i];
    EXPECT_NEAR(rows[i], transformer.Loss(exact, tokens.inputs, target), 0.05) << i;
  }
  EXPECT_EQ(rows[2], 0);
}

}  // namespace
}  // namespace causeway::worker::cuda
