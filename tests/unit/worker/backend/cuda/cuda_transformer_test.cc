#include "worker/backend/cuda/cuda_transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/backend/cuda/transformer_rig.h"
#include "tests/unit/worker/backend/model_fixture.h"

namespace causeway::worker::cuda {
namespace {

std::vector<float> RoundedParameters(const FragmentPlan& plan) {
  std::vector<float> parameters = RandomParameters<float>(plan, 1);
  for (float& value : parameters) value = __bfloat162float(__float2bfloat16_rn(value));
  return parameters;
}

TEST(CudaTransformer, Smoke) {
  const v1::ModelConfig model = MakeModel(
      {.width = 64, .heads = 2, .kv_heads = 1, .head_dim = 32, .mlp_width = 96, .qk_norm = true});
  const FragmentPlan plan = MakePlan(model);
  const std::vector<float> parameters = RoundedParameters(plan);
  HostTokens tokens = {RandomTokens(model, 2, 3), RandomTokens(model, 2, 4), {}};
  TransformerRig rig(model, plan, parameters, {.micro_batch_sequences = 2});
  const auto result = rig.Run({tokens});
  const auto expected =
      RunPass<double>(model, std::vector<double>(parameters.begin(), parameters.end()),
                      tokens.inputs, tokens.targets);
  printf("%f %f\n", result.loss.cross_entropy, expected.loss.cross_entropy);
  for (const auto& t : plan.tensors()) {
    std::vector<float> a(result.gradients.begin() + t.offset,
                         result.gradients.begin() + t.offset + t.info.size());
    std::vector<double> b(expected.gradients.begin() + t.offset,
                          expected.gradients.begin() + t.offset + t.info.size());
    printf("%s %f\n", t.info.name.c_str(), RelativeDistance(a, b));
  }
}

}  // namespace
}  // namespace causeway::worker::cuda
