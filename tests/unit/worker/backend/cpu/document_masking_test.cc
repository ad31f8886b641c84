// Documents that share a window: attention that stays within each of them.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {
namespace {

struct MaskingCase {
  std::string name;
  std::string shape;
};

class DocumentMaskingTest : public testing::TestWithParam<MaskingCase> {};

TEST_P(DocumentMaskingTest, DocumentInAWindowHasTheLossThatItHasAlone) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<double>(GetParam().shape, 2);
  const std::vector<int32_t> starts = DocumentStarts(model.sequence_length());
  ThreadPool pool(1);
  CpuTransformer<double> transformer(model, plan, 2, &pool);
  // The document of one token, and the last one's first token, each alone at the front of a window:
  // rotary positions only matter relative to each other.
  for (const size_t at : {size_t{3}, size_t{4}}) {
    std::vector<int32_t> only(targets.size(), -1);
    only[at] = targets[at];
    const double packed = transformer.Loss(parameters, inputs, only, starts);
    std::vector<int32_t> shifted = inputs;
    std::rotate(shifted.begin(), shifted.begin() + static_cast<ptrdiff_t>(at), shifted.end());
    std::vector<int32_t> first(targets.size(), -1);
    first[0] = targets[at];
    EXPECT_NEAR(packed, transformer.Loss(parameters, shifted, first), 1e-10);
  }
  // And of the last position, which sees its whole document.
  const auto length = static_cast<size_t>(model.sequence_length());
  std::vector<int32_t> last(targets.size(), -1);
  last[length - 1] = targets[length - 1];
  std::vector<int32_t> shifted = inputs;
  std::rotate(shifted.begin(), shifted.begin() + 4,
              shifted.begin() + static_cast<ptrdiff_t>(length));
  std::vector<int32_t> moved(targets.size(), -1);
  moved[length - 5] = targets[length - 1];
  const double packed = transformer.Loss(parameters, inputs, last, starts);
  EXPECT_NEAR(packed, transformer.Loss(parameters, shifted, moved), 1e-10);
  // Without the borders it is another.
  EXPECT_GT(std::abs(packed - transformer.Loss(parameters, inputs, last)), 1e-6);
}

TEST_P(DocumentMaskingTest, WindowsOfOneDocumentHaveTheSameBitsAsWithoutMasking) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<float>(GetParam().shape, 2);
  ThreadPool pool(2);
  CpuTransformer<float> transformer(model, plan, 2, &pool);
  std::vector<float> without(parameters.size());
  std::vector<float> with(parameters.size());
  const std::vector<int32_t> starts(inputs.size(), 0);
  transformer.ForwardBackward(parameters, inputs, targets, 1.0F, false, without);
  transformer.ForwardBackward(parameters, inputs, targets, 1.0F, false, with, starts);
  EXPECT_EQ(without, with);
}

INSTANTIATE_TEST_SUITE_P(Variants, DocumentMaskingTest,
                         testing::Values(MaskingCase{"Plain", ""},
                                         MaskingCase{"GroupedQueriesAndQkNorm",
                                                     "kv_heads: 2 qk_norm: true"},
                                         MaskingCase{"BeyondABlock", "sequence_length: 150"}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace causeway::worker
