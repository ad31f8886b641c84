// Changes that must leave the result as it is.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/backend/cpu/model_fixture.h"
#include "worker/backend/cpu/cpu_transformer.h"

namespace causeway::worker {
namespace {

TEST(TransformerInvarianceTest, AnyNumberOfThreadsGivesTheSameBits) {
  // Several tiles, chunks and blocks of every kind.
  auto [model, plan, parameters, inputs, targets] = MakeCase<float>(
      "vocabulary_size: 1500 layers: 2 width: 72 heads: 6 kv_heads: 2 head_dim: 12 mlp_width: 100 "
      "qk_norm: true z_loss: 1e-3 sequence_length: 301",
      3);
  const auto expected = RunPass(model, parameters, inputs, targets, 1);
  for (const int threads : {2, 3}) {
    const auto pass = RunPass(model, parameters, inputs, targets, threads);
    EXPECT_EQ(pass.loss.total, expected.loss.total);
    EXPECT_EQ(pass.gradients, expected.gradients) << threads << " threads";
  }
}

TEST(TransformerInvarianceTest, RepeatingACallGivesTheSameBits) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<float>("qk_norm: true", 2);
  ThreadPool pool(2);
  CpuTransformer<float> transformer(model, plan, 2, &pool);
  std::vector<float> first(parameters.size()), second(parameters.size());
  std::vector<float> logits(static_cast<size_t>(model.vocabulary_size()));
  transformer.ForwardBackward(parameters, inputs, targets, 1.0F, false, first);
  // Other work in between leaves nothing behind.
  transformer.Loss(parameters, targets, inputs);
  transformer.Logits(parameters, std::span(inputs).first(3), logits);
  transformer.ForwardBackward(parameters, inputs, targets, 1.0F, false, second);
  EXPECT_EQ(first, second);
}

TEST(TransformerInvarianceTest, AccumulatingPartsOfABatchGivesTheBatch) {
  for (const char* const head : {"untied_head: false", "untied_head: true"}) {
    auto [model, plan, parameters, inputs, targets] =
        MakeCase<double>(std::string("kv_heads: 2 qk_norm: true ") + head, 4);
    const auto whole = RunPass(model, parameters, inputs, targets);

    ThreadPool pool(1);
    CpuTransformer<double> transformer(model, plan, 2, &pool);
    std::vector<double> gradients(parameters.size(), 1e10);
    const size_t half = inputs.size() / 2;
    double loss = 0;
    for (size_t part = 0; part < 2; ++part) {
      loss += 0.5 * transformer
                        .ForwardBackward(parameters, std::span(inputs).subspan(part * half, half),
                                         std::span(targets).subspan(part * half, half), 0.5,
                                         part > 0, gradients)
                        .total;
    }
    EXPECT_NEAR(loss, whole.loss.total, 1e-12);
    EXPECT_LT(RelativeDistance(gradients, whole.gradients), 1e-12);
  }
}

TEST(TransformerInvarianceTest, OrderOfTheWindowsDoesNotMatter) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<double>("qk_norm: true", 3);
  const auto before = RunPass(model, parameters, inputs, targets);
  std::rotate(inputs.begin(), inputs.begin() + model.sequence_length(), inputs.end());
  std::rotate(targets.begin(), targets.begin() + model.sequence_length(), targets.end());
  const auto after = RunPass(model, parameters, inputs, targets);
  EXPECT_NEAR(after.loss.total, before.loss.total, 1e-12);
  EXPECT_LT(RelativeDistance(after.gradients, before.gradients), 1e-12);
}

TEST(TransformerInvarianceTest, TokensSeeNothingOfTheFuture) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<double>("sequence_length: 70", 1);
  std::fill(targets.begin() + 66, targets.end(), -1);
  const double before = RunPass(model, parameters, inputs, targets).loss.total;
  for (size_t i = 66; i < inputs.size(); ++i) inputs[i] = (inputs[i] + 1) % 37;
  EXPECT_EQ(RunPass(model, parameters, inputs, targets).loss.total, before);
}

TEST(TransformerInvarianceTest, PaddingRowsOfTheVocabularyDoNotMatter) {
  auto [model, plan, parameters, inputs, targets] = MakeCase<double>("z_loss: 0.01", 2);
  const auto before = RunPass(model, parameters, inputs, targets);
  const PlacedTensor* embedding = plan.Find("model.embed_tokens.weight");
  const int64_t padding = embedding->offset + int64_t{model.vocabulary_size()} * model.width();
  const int64_t end = embedding->offset + embedding->info.size();
  ASSERT_LT(padding, end);
  for (int64_t i = padding; i < end; ++i) parameters[static_cast<size_t>(i)] = 100;
  const auto after = RunPass(model, parameters, inputs, targets);
  EXPECT_EQ(after.loss.total, before.loss.total);
  for (int64_t i = padding; i < end; ++i) {
    ASSERT_EQ(after.gradients[static_cast<size_t>(i)], 0) << "row of padding";
  }
  EXPECT_LT(RelativeDistance(after.gradients, before.gradients), 1e-12);
}

TEST(TransformerInvarianceTest, TiedGradientIsTheSumOfEmbeddingAndHead) {
  const v1::ModelConfig tied = MakeModel();
  const v1::ModelConfig untied = MakeModel("untied_head: true");
  const FragmentPlan tied_plan = MakePlan(tied);
  const FragmentPlan untied_plan = MakePlan(untied);
  const auto tied_parameters = RandomParameters<double>(tied_plan, 1);
  std::vector<double> untied_parameters(static_cast<size_t>(untied_plan.arena_size()));
  const auto source = [&](const PlacedTensor& tensor) {
    const bool head = tensor.info.role == TensorRole::kHead;
    return tied_plan.Find(head ? "model.embed_tokens.weight" : tensor.info.name)->offset;
  };
  for (const PlacedTensor& tensor : untied_plan.tensors()) {
    std::copy_n(tied_parameters.begin() + source(tensor), tensor.info.size(),
                untied_parameters.begin() + tensor.offset);
  }
  const auto inputs = RandomTokens(tied, 2, 2);
  const auto targets = RandomTokens(tied, 2, 3);
  const auto one = RunPass(tied, tied_parameters, inputs, targets);
  const auto two = RunPass(untied, untied_parameters, inputs, targets);
  EXPECT_EQ(one.loss.total, two.loss.total);
  std::vector<double> sum(one.gradients.size());
  for (const PlacedTensor& tensor : untied_plan.tensors()) {
    for (int64_t i = 0; i < tensor.info.size(); ++i) {
      sum[static_cast<size_t>(source(tensor) + i)] +=
          two.gradients[static_cast<size_t>(tensor.offset + i)];
    }
  }
  EXPECT_LT(RelativeDistance(sum, one.gradients), 1e-13);
}

TEST(TransformerInvarianceTest, CutIntoFragmentsDoesNotMatter) {
  const v1::ModelConfig model = MakeModel("layers: 3 qk_norm: true");
  v1::SyncConfig sync;
  sync.set_pattern(v1::SyncConfig::STRIDED);
  sync.set_fragments(2);
  const FragmentPlan whole = MakePlan(model);
  const FragmentPlan cut = *FragmentPlan::Create(BuildTensorTable(model), sync);
  const auto parameters = RandomParameters<float>(whole, 1);
  std::vector<float> moved(static_cast<size_t>(cut.arena_size()));
  for (const PlacedTensor& tensor : cut.tensors()) {
    std::copy_n(parameters.begin() + whole.Find(tensor.info.name)->offset, tensor.info.size(),
                moved.begin() + tensor.offset);
  }
  const auto inputs = RandomTokens(model, 1, 2);
  const auto targets = RandomTokens(model, 1, 3);
  const auto expected = RunPass(model, parameters, inputs, targets);
  ThreadPool pool(1);
  CpuTransformer<float> transformer(model, cut, 1, &pool);
  std::vector<float> gradients(moved.size());
  const TokenLoss loss =
      transformer.ForwardBackward(moved, inputs, targets, 1.0F, false, gradients);
  EXPECT_EQ(loss.total, expected.loss.total);
  for (const PlacedTensor& tensor : cut.tensors()) {
    const int64_t from = whole.Find(tensor.info.name)->offset;
    for (int64_t i = 0; i < tensor.info.size(); ++i) {
      ASSERT_EQ(gradients[static_cast<size_t>(tensor.offset + i)],
                expected.gradients[static_cast<size_t>(from + i)])
          << tensor.info.name;
    }
  }
}

}  // namespace
}  // namespace causeway::worker
