// Token after token against whole sequences, and what a sequence may not depend on.
#include "worker/backend/cpu/decoder.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "tests/unit/worker/backend/cpu/reference_transformer.h"

namespace causeway::worker {
namespace {

std::vector<std::string> Shapes() {
  return {
      "sequence_length: 21",
      "mlp: GELU sequence_length: 21",
      "kv_heads: 2 qk_norm: true untied_head: true sequence_length: 70",
      std::string("kv_heads: 1 sequence_length: 40 qkv_bias: true ") + kRopeScaling,
      "mlp: GELU sequence_length: 30 qkv_bias: true output_bias: true mlp_bias: true layer_norm: "
      "true learned_positions: 33",
  };
}

template <typename T>
double Largest(const std::vector<T>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

// A prompt in two parts, then single tokens: the logits of the definition at every length.
template <typename T>
void ExpectLogitsOfTheDefinition(const std::string& shape, double bound) {
  const v1::ModelConfig model = MakeModel(shape);
  const FragmentPlan plan = MakePlan(model);
  const auto tokens = RandomTokens(model, 1, 2);
  const auto expected = ReferenceLogits(model, plan, RandomParameters<double>(plan, 1), tokens);
  const auto parameters = RandomParameters<T>(plan, 1);
  ThreadPool pool(2);
  CpuDecoder<T> decoder(model, plan, 2, &pool);
  std::vector<T> logits(static_cast<size_t>(model.vocabulary_size()));
  const std::span<const int32_t> all(tokens);
  decoder.Append(parameters, 1, all.first(5), logits);
  EXPECT_LT(Largest(logits, expected[4]), bound);
  decoder.Append(parameters, 1, all.subspan(5, 8), logits);
  EXPECT_LT(Largest(logits, expected[12]), bound);
  for (size_t i = 13; i < tokens.size(); ++i) {
    decoder.Step(parameters, std::vector<typename CpuDecoder<T>::NextToken>{{1, tokens[i]}},
                 logits);
    ASSERT_LT(Largest(logits, expected[i]), bound) << "token " << i;
  }
  EXPECT_EQ(decoder.length(1), decoder.capacity());
  EXPECT_EQ(decoder.length(0), 0);
}

TEST(CpuDecoderTest, LogitsAreThoseOfTheDefinition) {
  for (const std::string& shape : Shapes()) {
    SCOPED_TRACE(shape);
    ExpectLogitsOfTheDefinition<double>(shape, 1e-11);
    ExpectLogitsOfTheDefinition<float>(shape, 2e-5);
  }
}

TEST(CpuDecoderTest, PromptsLongerThanAChunkAreTheSame) {
  const v1::ModelConfig model = MakeModel(
      "layers: 1 width: 8 heads: 2 kv_heads: 1 head_dim: 4 mlp_width: 8 sequence_length: 300");
  const FragmentPlan plan = MakePlan(model);
  const auto tokens = RandomTokens(model, 1, 2);
  const auto expected = ReferenceLogits(model, plan, RandomParameters<double>(plan, 1), tokens);
  ThreadPool pool(2);
  CpuDecoder<double> decoder(model, plan, 1, &pool);
  std::vector<double> logits(static_cast<size_t>(model.vocabulary_size()));
  decoder.Append(RandomParameters<double>(plan, 1), 0, tokens, logits);
  EXPECT_LT(Largest(logits, expected.back()), 1e-11);
}

TEST(CpuDecoderTest, LogitsKeepTheirBitsBesideOtherSequencesAndOnMoreThreads) {
  const v1::ModelConfig model = MakeModel("kv_heads: 2 qk_norm: true sequence_length: 30");
  const FragmentPlan plan = MakePlan(model);
  const auto parameters = RandomParameters<float>(plan, 1);
  const auto tokens = RandomTokens(model, 7, 2);
  const auto vocabulary = static_cast<size_t>(model.vocabulary_size());
  const auto run = [&](int sequences, int threads) {
    ThreadPool pool(threads);
    CpuDecoder<float> decoder(model, plan, sequences, &pool);
    std::vector<float> one(vocabulary);
    std::vector<CpuDecoder<float>::NextToken> next;
    for (int s = 0; s < sequences; ++s) {
      // Prompts of different lengths.
      decoder.Append(
          parameters, s,
          std::span(tokens).subspan(static_cast<size_t>(30 * s), static_cast<size_t>(3 + s)), one);
      next.push_back({s, tokens[static_cast<size_t>(s)]});
    }
    std::vector<float> logits(vocabulary * next.size());
    for (int step = 0; step < 4; ++step) decoder.Step(parameters, next, logits);
    logits.resize(vocabulary);
    return logits;
  };
  const std::vector<float> alone = run(1, 1);
  EXPECT_EQ(run(2, 1), alone);
  EXPECT_EQ(run(4, 3), alone);
  EXPECT_EQ(run(7, 2), alone);
}

TEST(CpuDecoderTest, AClearedSequenceBeginsAnew) {
  const v1::ModelConfig model = MakeModel();
  const FragmentPlan plan = MakePlan(model);
  const auto parameters = RandomParameters<float>(plan, 1);
  const auto tokens = RandomTokens(model, 1, 2);
  ThreadPool pool(1);
  CpuDecoder<float> decoder(model, plan, 1, &pool);
  std::vector<float> first(static_cast<size_t>(model.vocabulary_size()));
  std::vector<float> second(first.size());
  decoder.Append(parameters, 0, tokens, first);
  decoder.Clear(0);
  decoder.Append(parameters, 0, tokens, second);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace causeway::worker
