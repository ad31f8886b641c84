// Gradients in double against finite differences of the loss, tensor by tensor.
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {
namespace {

struct GradientCase {
  std::string name;
  std::string shape;
  bool documents = false;  // Several in a window, each of which attends to itself alone.
};

class GradientTest : public testing::TestWithParam<GradientCase> {};

// Along the gradient itself and along random directions: a value that is wrong or missing
// anywhere in the tensor shows in the latter.
TEST_P(GradientTest, EveryTensorAgreesWithCentralDifferences) {
  const v1::ModelConfig model = MakeModel(GetParam().shape);
  const FragmentPlan plan = MakePlan(model);
  const auto parameters = RandomParameters<double>(plan, 1);
  const auto inputs = RandomTokens(model, 2, 2);
  auto targets = RandomTokens(model, 2, 3);
  targets.back() = -1;
  const std::vector<int32_t> starts =
      GetParam().documents ? DocumentStarts(model.sequence_length()) : std::vector<int32_t>();
  ThreadPool pool(1);
  CpuTransformer<double> transformer(model, plan, 2, &pool);
  std::vector<double> gradients(parameters.size());
  transformer.ForwardBackward(parameters, inputs, targets, 1.0, false, gradients, starts);

  std::vector<double> unused(parameters.size());
  std::mt19937 engine(4);
  std::normal_distribution<double> normal;
  for (const PlacedTensor& tensor : plan.tensors()) {
    const auto begin = static_cast<size_t>(tensor.offset);
    const auto size = static_cast<size_t>(tensor.info.size());
    double gradient_norm = 0;
    for (size_t i = 0; i < size; ++i) {
      gradient_norm += gradients[begin + i] * gradients[begin + i];
    }
    gradient_norm = std::sqrt(gradient_norm);
    // Without RoPE, the same vector added to all keys adds the same to all scores of a query.
    const bool felt = model.learned_positions() == 0 || !tensor.info.name.ends_with("k_proj.bias");
    // A lone token attends to itself whatever queries and keys are.
    if (model.sequence_length() > 1 && felt) {
      ASSERT_GT(gradient_norm, 1e-6) << tensor.info.name;
    }
    for (int trial = gradient_norm > 0 ? 0 : 1; trial < 3; ++trial) {
      std::vector<double> direction(size);
      double norm = 0;
      for (size_t i = 0; i < size; ++i) {
        direction[i] = trial == 0 ? gradients[begin + i] : normal(engine);
        norm += direction[i] * direction[i];
      }
      double analytic = 0;
      for (size_t i = 0; i < size; ++i) {
        direction[i] /= std::sqrt(norm);
        analytic += direction[i] * gradients[begin + i];
      }
      const auto loss_at = [&](double distance) {
        auto moved = parameters;
        for (size_t i = 0; i < size; ++i) moved[begin + i] += distance * direction[i];
        return transformer.ForwardBackward(moved, inputs, targets, 1.0, false, unused, starts)
            .total;
      };
      // Central differences with steps h and 2h, combined to fourth order.
      constexpr double kStep = 5e-4;
      const double near = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      const double far = (loss_at(2 * kStep) - loss_at(-2 * kStep)) / (4 * kStep);
      const double numeric = (4 * near - far) / 3;
      EXPECT_NEAR(analytic, numeric, 1e-6 * gradient_norm + 1e-11)
          << tensor.info.name << ", direction " << trial << ", |gradient| " << gradient_norm;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, GradientTest,
    testing::Values(
        GradientCase{"Swiglu", ""}, GradientCase{"Gelu", "mlp: GELU"},
        GradientCase{"SwigluQkNorm", "qk_norm: true"},
        GradientCase{"GeluQkNormUntied", "mlp: GELU qk_norm: true untied_head: true"},
        GradientCase{"OneKeyHead", "kv_heads: 1"},
        GradientCase{"OneKeyHeadQkNorm", "kv_heads: 1 qk_norm: true z_loss: 0.01"},
        GradientCase{"TwoKeyHeads", "kv_heads: 2 qk_norm: true untied_head: true"},
        GradientCase{"Untied", "untied_head: true"},
        GradientCase{"ZLoss", "mlp: GELU z_loss: 0.05"},
        GradientCase{"AdjacentMatrices", "width: 32 head_dim: 8 mlp_width: 64 qk_norm: true"},
        GradientCase{"HeadsWiderThanTheModel", "heads: 2 kv_heads: 1 head_dim: 20"},
        GradientCase{"QkvBias", "kv_heads: 2 qk_norm: true qkv_bias: true"},
        GradientCase{"AllBiases", "qkv_bias: true output_bias: true mlp_bias: true"},
        GradientCase{"LayerNorm", "layer_norm: true"},
        GradientCase{"LearnedPositions", "learned_positions: 11"},
        GradientCase{"RopeScaling", std::string("sequence_length: 24 ") + kRopeScaling},
        GradientCase{"Gpt2",
                     "mlp: GELU sequence_length: 37 qkv_bias: true output_bias: true mlp_bias: "
                     "true layer_norm: true learned_positions: 40"},
        GradientCase{"OneToken", "qk_norm: true sequence_length: 1"},
        GradientCase{"BeyondAnAttentionBlock",
                     "layers: 1 width: 8 heads: 2 kv_heads: 1 head_dim: 4 mlp_width: 8 "
                     "sequence_length: 131"},
        GradientCase{"Documents", "", true},
        GradientCase{"DocumentsGroupedQueriesQkNorm", "kv_heads: 2 qk_norm: true", true},
        GradientCase{"DocumentsBeyondABlock", "sequence_length: 150", true}),
    [](const testing::TestParamInfo<GradientCase>& test) { return test.param.name; });

}  // namespace
}  // namespace causeway::worker
