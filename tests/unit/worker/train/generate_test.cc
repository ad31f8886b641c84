#include "worker/train/generate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
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

  const v1::ModelConfig model_ = MakeModel("kv_heads: 2 qk_norm: true sequence_length: 32");
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

TEST_F(GenerateTest, TextsMadeInTurnsAreThoseMadeAtOnce) {
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {5, 6}};
  GenerateOptions options = {.tokens = 20, .temperature = 0.9, .top_p = 0.9, .seed = 3};
  const auto together = Run(prompts, options);
  CpuDecoder<float> decoder(model_, plan_, 2, &pool_, /*capacity=*/23);
  EXPECT_EQ(decoder.capacity(), 23);
  const auto first = Generate(decoder, parameters_, std::span(prompts).first(2), options);
  options.first_prompt = 2;
  const auto last = Generate(decoder, parameters_, std::span(prompts).last(1), options);
  EXPECT_EQ((std::vector{first[0], first[1], last[0]}), together);
}

TEST_F(GenerateTest, MemorySaysHowManyTextsAreMadeAtOnce) {
  const int64_t one = CpuDecoder<float>::CacheBytes(model_, 32);
  EXPECT_EQ(one, 2 * 4 * 32 * int64_t{model_.layers()} * model_.kv_heads() * model_.head_dim());
  EXPECT_EQ(*TextsAtOnce(model_, 32, 5 * one - 1, 100), 4u);
  EXPECT_EQ(*TextsAtOnce(model_, 32, 5 * one, 3), 3u);
  EXPECT_EQ(*TextsAtOnce(model_, 32, 100000 * one, 100000), 256u);
  const absl::Status none = TextsAtOnce(model_, 32, one - 1, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(none));
  EXPECT_THAT(none.message(), testing::HasSubstr("--max_cache_gb"));
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
  // The first of the two likeliest, 4/7 and 3/7, is enough.
  EXPECT_THAT(Drawn(logits, {.top_k = 2, .top_p = 0.5}), ElementsAre(0));
  EXPECT_THAT(Drawn(logits, {.temperature = 0}), ElementsAre(0));
  EXPECT_THAT(Drawn(logits, {.top_k = 3, .known_tokens = 2}), ElementsAre(0, 1));
  EXPECT_EQ(SampleToken(logits, {}, 0.45), 1);
  EXPECT_EQ(SampleToken(logits, {.top_k = 4}, 0.45), 2);
}

// By sorting everything, as the definition goes.
int32_t SampleSorted(const std::vector<float>& logits, const GenerateOptions& options,
                     double draw) {
  const float highest = *std::ranges::max_element(logits);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int32_t token) { return logits[static_cast<size_t>(token)]; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  const auto weight = [&](int32_t token) {
    return std::exp((logits[static_cast<size_t>(token)] - highest) / options.temperature);
  };
  double total = 0;
  for (const int32_t token : order) total += weight(token);
  double sum = 0;
  size_t count = 0;
  while (count < order.size() && (count == 0 || sum < options.top_p * total)) {
    sum += weight(order[count++]);
  }
  double left = draw * sum;
  for (size_t i = 0; i + 1 < count; ++i) {
    if ((left -= weight(order[i])) < 0) return order[i];
  }
  return order[count - 1];
}

TEST(SampleToken, DrawsAsIfAllTokensWereSorted) {
  for (const size_t tokens : {size_t{3}, size_t{64}, size_t{1000}, size_t{5000}}) {
    std::vector<float> logits;
    for (size_t i = 0; i < tokens; ++i) {
      // Rounded, so that many are equal.
      logits.push_back(static_cast<float>(std::round(40 * RandomUniform(1, tokens, i)) / 8));
    }
    for (const double top_p : {0.01, 0.3, 0.9, 0.999, 1.0}) {
      for (const int top_k : {0, 1, 50, 300, 4000}) {
        for (const double temperature : {0.2, 1.0, 3.0}) {
          const GenerateOptions options = {
              .temperature = temperature, .top_k = top_k, .top_p = top_p};
          if (top_k == 0 && top_p == 1) continue;  // Drawn without an order.
          for (uint64_t i = 0; i < 20; ++i) {
            const double draw = RandomUniform(2, tokens, i);
            ASSERT_EQ(SampleToken(logits, options, draw), SampleSorted(logits, options, draw))
                << tokens << " tokens, top_p " << top_p << ", top_k " << top_k;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace causeway::worker
