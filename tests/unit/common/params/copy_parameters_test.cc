#include "common/params/initialize.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/params/configs.h"

namespace causeway {
namespace {

using ::testing::HasSubstr;

FragmentPlan SmallPlan(const std::string& text) {
  const v1::RunConfig config = Completed(text, Parsed(kSmallModel));
  return *FragmentPlan::Create(config);
}

std::vector<float> Values(const FragmentPlan& plan, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, seed, values);
  return values;
}

TEST(CopyParameters, FindsEveryTensorInAnotherPlan) {
  const FragmentPlan from = SmallPlan("");
  const FragmentPlan to = SmallPlan("sync { fragments: 2 pattern: STRIDED }");
  ASSERT_NE(from.hash(), to.hash());
  std::vector<float> copy(static_cast<size_t>(to.arena_size()), 7.0F);
  ASSERT_TRUE(CopyParameters(from, Values(from, 1), to, copy).ok());
  EXPECT_EQ(copy, Values(to, 1));
}

TEST(CopyParameters, NamesTheTensorAndBothShapesWhereTheyDiffer) {
  const FragmentPlan from = SmallPlan("model { mlp_width: 128 }");
  const FragmentPlan to = SmallPlan("");
  std::vector<float> copy(static_cast<size_t>(to.arena_size()));
  const absl::Status status = CopyParameters(from, Values(from, 1), to, copy);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.0.mlp.gate_proj.weight is [192, 64] in the run's model, but "
                        "[128, 64] in the given parameters"));
}

TEST(CopyParameters, NamesTheTensorThatOneSideLacks) {
  const FragmentPlan tied = SmallPlan("");
  const FragmentPlan untied = SmallPlan("model { untied_head: true }");
  std::vector<float> copy(static_cast<size_t>(untied.arena_size()));
  EXPECT_THAT(std::string(CopyParameters(tied, Values(tied, 1), untied, copy).message()),
              HasSubstr("a tensor lm_head.weight [384, 64], the given parameters have none"));
  copy.resize(static_cast<size_t>(tied.arena_size()));
  EXPECT_THAT(std::string(CopyParameters(untied, Values(untied, 1), tied, copy).message()),
              HasSubstr("lm_head.weight [384, 64], the run's model has none"));
}

}  // namespace
}  // namespace causeway
