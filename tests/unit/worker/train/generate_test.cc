#include "worker/train/generate.h"

#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/backend/model_fixture.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class GenerateTest : public testing::Test {
 protected:
  std::vector<std::vector<int32_t>> Run(const std::vector<std::vector<int32_t>>& prompts,
                                        const GenerateOptions& options,
                                        const TokenSink& sink = nullptr) {
    CpuDecoder<float> decoder(model_, plan_, static_cast<int>(prompts.size()), &pool_);
    return Generate(decoder, parameters_, prompts, options, sink);
  }

  const v1::ModelConfig model_ = MakeModel({.kv_heads = 2, .qk_norm = true, .sequence_length = 32});
  const FragmentPlan plan_ = MakePlan(model_);
  const std::vector<float> parameters_ = RandomParameters<float>(plan_, 1);
  ThreadPool pool_{2};
};

TEST_F(GenerateTest, GreedyTextIsTheOneWithoutACacheTokenForToken) {
  const std::vector<int32_t> prompt = {3, 1, 4};
  const auto text = Run({prompt}, {.tokens = 29, .temperature = 0}).front();
  CpuTransformer<float> model(model_, plan_, 1, &pool_);
  std::vector<int32_t> tokens = prompt;
  std::vector<float> logits(static_cast<size_t>(model_.vocabulary_size()));
  while (tokens.size() < 32) {
    model.Logits(parameters_, tokens, logits);
    tokens.push_back(SampleToken(logits, {.temperature = 0}, 0));
  }
  EXPECT_THAT(text, ElementsAreArray(std::span(tokens).subspan(prompt.size())));
}

TEST_F(GenerateTest, BeyondTheWindowItGoesOnFromTheNewerHalf) {
  const auto text = Run({{5}}, {.tokens = 40, .temperature = 0}).front();
  // 32 tokens fill the window: the prompt and 31 more. The 32nd is read with the 15 before it.
  const std::vector<int32_t> half(text.begin() + 16, text.begin() + 32);
  const auto rest = Run({half}, {.tokens = 8, .temperature = 0}).front();
  EXPECT_THAT(rest, ElementsAreArray(text.begin() + 32, text.end()));
}

TEST_F(GenerateTest, ATextDoesNotDependOnTheOthers) {
  const std::vector<int32_t> a = {1, 2, 3, 4, 5, 6}, b = {9}, c = {8, 8, 8};
  const GenerateOptions options = {.tokens = 50, .temperature = 0.9, .top_k = 20, .seed = 7};
  const auto together = Run({a, b, c}, options);
  EXPECT_EQ(Run({a}, options)[0], together[0]);
  EXPECT_EQ(Run({c, b}, options)[1], together[1]);
  EXPECT_EQ(Run({a, b, c}, options), together);
  EXPECT_NE(Run({a, b, c}, {.tokens = 50, .temperature = 0.9, .top_k = 20, .seed = 8}), together);
}

TEST_F(GenerateTest, TheEndTokenEndsItsTextAlone) {
  const auto free = Run({{1, 2}, {7}}, {.tokens = 12, .temperature = 0});
  const int32_t end = free[0][4];
  const auto cut = Run({{1, 2}, {7}}, {.tokens = 12, .temperature = 0, .end_token = end});
  const auto first = std::ranges::find(free[0], end);
  EXPECT_THAT(cut[0], ElementsAreArray(free[0].begin(), first));
  EXPECT_THAT(cut[1], ElementsAreArray(free[1].begin(), std::ranges::find(free[1], end)));
}

TEST_F(GenerateTest, TokensAreHandedOutAsTheyCome) {
  std::vector<std::vector<int32_t>> seen(2);
  const auto texts = Run({{1}, {2, 3}}, {.tokens = 5},
                         [&](size_t prompt, int32_t token) { seen[prompt].push_back(token); });
  EXPECT_EQ(seen, texts);
  EXPECT_THAT(Run({{1}}, {.tokens = 0}).front(), ElementsAre());
}

std::set<int32_t> Drawn(const std::vector<float>& logits, const GenerateOptions& options) {
  std::set<int32_t> tokens;
  for (int i = 0; i < 1000; ++i) tokens.insert(SampleToken(logits, options, i / 1000.0));
  return tokens;
}

TEST(SampleToken, DrawsAmongTheLikeliest) {
  // Probabilities 0.4, 0.1, 0.3, 0.2.
  const std::vector<float> logits = {std::log(4.0F), 0, std::log(3.0F), std::log(2.0F)};
  EXPECT_THAT(Drawn(logits, {}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Drawn(logits, {.top_k = 2}), ElementsAre(0, 2));
  EXPECT_THAT(Drawn(logits, {.top_k = 100}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Drawn(logits, {.top_p = 0.65}), ElementsAre(0, 2));
  EXPECT_THAT(Drawn(logits, {.top_p = 0.75}), ElementsAre(0, 2, 3));
  EXPECT_THAT(Drawn(logits, {.top_p = 0.01}), ElementsAre(0));
  // Of the two likeliest, 4/7 and 3/7, the first is enough.
  EXPECT_THAT(Drawn(logits, {.top_k = 2, .top_p = 0.5}), ElementsAre(0));
  EXPECT_THAT(Drawn(logits, {.temperature = 0}), ElementsAre(0));
  EXPECT_THAT(Drawn(logits, {.top_k = 3, .known_tokens = 2}), ElementsAre(0, 1));
  EXPECT_EQ(SampleToken(logits, {}, 0.45), 1);
  EXPECT_EQ(SampleToken(logits, {.top_k = 4}, 0.45), 2);
}

}  // namespace
}  // namespace causeway::worker
