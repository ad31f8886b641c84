#include "worker/train/evaluate.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "tests/unit/worker/backend/cpu/reference_transformer.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace causeway::worker {
namespace {

struct Losses {
  double sum = 0;
  double mean = 0;
};

// By the definition of the model.
Losses LossesOf(const v1::ModelConfig& model, const FragmentPlan& plan,
                std::span<const double> parameters, const ChoiceExample& example, size_t choice) {
  std::vector<int32_t> tokens = example.context;
  tokens.insert(tokens.end(), example.completions[choice].begin(),
                example.completions[choice].end());
  const auto logits = ReferenceLogits(model, plan, parameters, tokens);
  Losses losses;
  for (size_t i = example.context.size(); i < tokens.size(); ++i) {
    double sum = 0;
    for (const double logit : logits[i - 1]) sum += std::exp(logit);
    losses.sum += std::log(sum) - logits[i - 1][static_cast<size_t>(tokens[i])];
  }
  losses.mean = losses.sum / static_cast<double>(example.completions[choice].size());
  return losses;
}

TEST(EvaluateChoices, CountsByProbabilityAndByProbabilityPerToken) {
  const v1::ModelConfig model = MakeModel({.sequence_length = 16});
  const FragmentPlan plan = MakePlan(model);
  std::mt19937 engine(1);
  std::uniform_int_distribution<int32_t> token(0, 36);
  std::uniform_int_distribution<size_t> length(1, 6);
  const auto random_tokens = [&] {
    std::vector<int32_t> tokens(length(engine));
    for (int32_t& t : tokens) t = token(engine);
    return tokens;
  };
  std::vector<ChoiceExample> examples(20);
  double accuracy = 0, normalized = 0, loss = 0;
  int told_apart = 0;
  for (ChoiceExample& example : examples) {
    example.context = random_tokens();
    for (int i = 0; i < 3; ++i) example.completions.push_back(random_tokens());
    example.label = 1;
    std::vector<Losses> all;
    for (size_t i = 0; i < 3; ++i) {
      all.push_back(LossesOf(model, plan, RandomParameters<double>(plan, 1), example, i));
    }
    accuracy += std::ranges::min_element(all, {}, &Losses::sum) == all.begin() + 1;
    normalized += std::ranges::min_element(all, {}, &Losses::mean) == all.begin() + 1;
    told_apart += std::ranges::min_element(all, {}, &Losses::sum) !=
                  std::ranges::min_element(all, {}, &Losses::mean);
    loss += all[1].mean;
  }
  ThreadPool pool(2);
  CpuTransformer<float> transformer(model, plan, 2, &pool);
  CpuEvaluationModel evaluation(&transformer);
  const auto result = EvaluateChoices(evaluation, RandomParameters<float>(plan, 1), examples);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->examples, 20);
  EXPECT_DOUBLE_EQ(result->accuracy, accuracy / 20);
  EXPECT_DOUBLE_EQ(result->normalized, normalized / 20);
  EXPECT_NEAR(result->loss, loss / 20, 1e-5);
  EXPECT_EQ(result->cut, 0);
  EXPECT_GT(told_apart, 0) << "the test's examples must tell the two apart";
}

TEST(EvaluateChoices, LongContextsLoseTheirBeginningAndLongCompletionsAreRefused) {
  const v1::ModelConfig model = MakeModel({.sequence_length = 8});
  const FragmentPlan plan = MakePlan(model);
  const auto parameters = RandomParameters<float>(plan, 1);
  ThreadPool pool(1);
  CpuTransformer<float> transformer(model, plan, 2, &pool);
  CpuEvaluationModel evaluation(&transformer);
  const ChoiceExample whole = {.context = {1, 2, 3, 4, 5, 6, 7}, .completions = {{8, 9}, {9, 8}}};
  ChoiceExample longer = whole;
  longer.context.insert(longer.context.begin(), 30);
  const auto expected = EvaluateChoices(evaluation, parameters, std::vector{whole});
  const auto cut = EvaluateChoices(evaluation, parameters, std::vector{longer});
  EXPECT_EQ(expected->cut, 0);
  EXPECT_EQ(cut->cut, 1);
  EXPECT_EQ(cut->loss, expected->loss);
  longer.completions[1].assign(9, 1);
  EXPECT_EQ(EvaluateChoices(evaluation, parameters, std::vector{longer}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(EvaluateChoices, EndsWhenItIsToldTo) {
  const v1::ModelConfig model = MakeModel({.sequence_length = 8});
  const FragmentPlan plan = MakePlan(model);
  ThreadPool pool(1);
  CpuTransformer<float> transformer(model, plan, 2, &pool);
  CpuEvaluationModel evaluation(&transformer);
  const ChoiceExample example = {.context = {1, 2}, .completions = {{8, 9}, {9, 8}}};
  int64_t last = 0;
  const auto result = EvaluateChoices(evaluation, RandomParameters<float>(plan, 1),
                                      std::vector(5, example), [&](int64_t done, int64_t all) {
                                        EXPECT_EQ(all, 5);
                                        last = done;
                                        return done < 3;
                                      });
  EXPECT_TRUE(absl::IsCancelled(result.status()));
  EXPECT_EQ(last, 3);
}

}  // namespace
}  // namespace causeway::worker
