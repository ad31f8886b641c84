#include "server/outer/outer_optimizer.h"

#include "common/params/adamw.h"
#include "gmock/gmock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/outer/merge_fixture.h"

namespace causeway::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Sgd, HasNoState) {
  EXPECT_THAT(Optimizer(v1::OuterConfig::NESTEROV, 0.4, 0.9)->state_names(),
              ElementsAre("momentum"));
  const auto optimizer = Optimizer(v1::OuterConfig::SGD, 0.5, 0.9);
  EXPECT_TRUE(optimizer->state_names().empty());
  std::vector<float> theta = {1.0F, 2.0F};
  const std::vector<double> g = {1.0, -1.0};
  optimizer->Step({.round = 1, .g = g, .theta = theta, .state = {}});
  EXPECT_THAT(theta, ElementsAre(0.5F, 2.5F));
}

PlacedTensor Tensor(int64_t offset, int64_t rows, int64_t cols) {
  PlacedTensor tensor;
  tensor.info.rows = rows;
  tensor.info.cols = cols;
  tensor.offset = offset;
  return tensor;
}

TEST(OuterAdamW, IsTheWorkersAdamWWithItsScheduleAndDecay) {
  // A vector at 0, a matrix at 64, a vector at 128; the fragment's slice begins at 32.
  const std::vector<PlacedTensor> tensors = {Tensor(128, 64, 1), Tensor(64, 8, 8),
                                             Tensor(0, 64, 1)};
  const v1::TrainConfig train = AdamWTrain(-1);
  const auto optimizer = Optimizer(v1::OuterConfig::ADAMW, 0.01, 0, train, tensors);
  EXPECT_THAT(optimizer->state_names(), ElementsAre("m", "v"));
  constexpr size_t kValues = 130;
  constexpr int64_t kArenaBegin = 32;
  std::vector<float> theta(kValues, 1.0F);
  std::vector<float> m(kValues, 0.0F);
  std::vector<float> v(kValues, 0.0F);
  std::vector<float> expected = theta;
  std::vector<float> expected_m = m;
  std::vector<float> expected_v = v;
  for (int64_t round = 1; round <= 20; ++round) {
    std::vector<double> g(kValues);
    for (size_t i = 0; i < kValues; ++i) g[i] = RandomNormal(3, static_cast<uint64_t>(round), i);
    optimizer->Step(
        {.arena_begin = kArenaBegin, .round = round, .g = g, .theta = theta, .state = {m, v}});
    const AdamWStep<float> step(0.01 * LearningRateFactor(round, 50, 5, 0.1), 0.9, 0.99, 1e-8,
                                round);
    for (size_t i = 0; i < kValues; ++i) {
      const size_t position = i + kArenaBegin;
      const bool in_matrix = position >= 64 && position < 128;
      step.Apply(static_cast<float>(g[i]), in_matrix ? 0.1F : 0.0F, expected[i], expected_m[i],
                 expected_v[i]);
    }
  }
  EXPECT_EQ(theta, expected);
  EXPECT_EQ(m, expected_m);
  EXPECT_EQ(v, expected_v);
}

TEST(OuterAdamW, ClipsByTheNormOfTheWholeFragment) {
  v1::TrainConfig train = AdamWTrain(-1);
  EXPECT_FALSE(Optimizer(v1::OuterConfig::ADAMW, 0.01, 0, train)->needs_gradient_norm());
  train.set_clip_norm(1);
  const auto optimizer = Optimizer(v1::OuterConfig::ADAMW, 0.01, 0, train);
  EXPECT_TRUE(optimizer->needs_gradient_norm());
  const std::vector<double> g = {2.0};
  std::vector<float> theta = {0.0F};
  std::vector<float> m = {0.0F};
  std::vector<float> v = {0.0F};
  optimizer->Step({.round = 1, .gradient_norm = 8, .g = g, .theta = theta, .state = {m, v}});
  EXPECT_FLOAT_EQ(m[0], 0.1F * 0.25F);
  m[0] = 0;
  optimizer->Step({.round = 1, .gradient_norm = 0.5, .g = g, .theta = theta, .state = {m, v}});
  EXPECT_FLOAT_EQ(m[0], 0.1F * 2.0F);
}

TEST(CreateOuterOptimizer, RefusesWhatIsNone) {
  const auto optimizer = CreateOuterOptimizer(v1::OuterConfig(), AdamWTrain(-1), {});
  EXPECT_THAT(optimizer, StatusIs(kInvalidArgument, HasSubstr("outer.optimizer")));
}

TEST(ContributionWeights, FollowTokensOrNot) {
  const std::vector<int64_t> tokens = {300, 100, 0};
  EXPECT_THAT(*ContributionWeights(tokens, v1::MembershipConfig::TOKENS),
              ElementsAre(0.75, 0.25, 0.0));
  EXPECT_THAT(*ContributionWeights(tokens, v1::MembershipConfig::UNIFORM),
              ElementsAre(1.0 / 3, 1.0 / 3, 1.0 / 3));
  EXPECT_THAT(*ContributionWeights(std::vector<int64_t>{0, 0}, v1::MembershipConfig::TOKENS),
              ElementsAre(0.5, 0.5));
  EXPECT_THAT(*ContributionWeights(std::vector<int64_t>{77}, v1::MembershipConfig::TOKENS),
              ElementsAre(1.0));
  EXPECT_TRUE(ContributionWeights({}, v1::MembershipConfig::TOKENS)->empty());
}

TEST(ContributionWeights, RefuseCountsThatAreNone) {
  for (const auto& tokens : {std::vector<int64_t>{1, -1}, std::vector<int64_t>{INT64_MAX, 1}}) {
    EXPECT_THAT(ContributionWeights(tokens, v1::MembershipConfig::TOKENS),
                StatusIs(kInvalidArgument));
  }
}

}  // namespace
}  // namespace causeway::server
