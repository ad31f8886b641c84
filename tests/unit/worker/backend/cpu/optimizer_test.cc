#include "worker/backend/cpu/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/base/random.h"
#include "common/params/adamw.h"
#include "common/params/run_config.h"

namespace causeway::worker {
namespace {

class InnerOptimizerTest : public ::testing::Test {
 protected:
  // A small model in three fragments.
  static v1::RunConfig Config(const std::string& train) {
    v1::RunConfig config = *ParseRunConfig(
        R"(model { layers: 2 width: 64 heads: 4 kv_heads: 2 mlp_width: 96 qk_norm: true
                   untied_head: true }
           sync { fragments: 2 }
           train { steps: 100 warmup_steps: 10 )" +
            train + "}",
        "test");
    EXPECT_TRUE(CompleteRunConfig(config).ok());
    return config;
  }

  void Prepare(const std::string& train) {
    config_ = Config(train);
    plan_ = *FragmentPlan::Create(config_);
  }

  template <typename T>
  std::vector<T> Values(uint64_t seed, double scale) {
    std::vector<T> values(static_cast<size_t>(plan_.arena_size()));
    for (const PlacedTensor& tensor : plan_.tensors()) {
      for (int64_t i = 0; i < tensor.info.size(); ++i) {
        const auto at = static_cast<size_t>(tensor.offset + i);
        values[at] = static_cast<T>(scale * RandomNormal(seed, 3, at));
      }
    }
    return values;
  }

  template <typename T>
  std::unique_ptr<InnerOptimizer<T>> Make(ThreadPool* pool) {
    return std::make_unique<InnerOptimizer<T>>(plan_, config_.train(), pool);
  }

  // The weights after `steps` steps from step 1, with gradients that differ from step to step.
  template <typename T>
  std::vector<T> Train(InnerOptimizer<T>& optimizer, std::vector<T> weights, int64_t first,
                       int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      const std::vector<T> gradients = Values<T>(static_cast<uint64_t>(100 + step), 0.01);
      EXPECT_TRUE(optimizer.Step(step, weights, gradients).ok());
    }
    return weights;
  }

  v1::RunConfig config_;
  FragmentPlan plan_ = *FragmentPlan::Create(Config(""));
  ThreadPool pool_{2};
};

TEST_F(InnerOptimizerTest, AdamWIsTheSharedUpdateOnEveryTensorBitForBit) {
  Prepare("optimizer: ADAMW clip_norm: -1 weight_decay: 0.1");
  const std::vector<float> start = Values<float>(1, 0.1);
  const auto optimizer = Make<float>(&pool_);
  const std::vector<float> found = Train(*optimizer, start, 1, 3);

  std::vector<float> expected = start;
  std::vector<float> m(start.size(), 0.0F);
  std::vector<float> v(start.size(), 0.0F);
  const v1::TrainConfig& train = config_.train();
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<float> gradients = Values<float>(static_cast<uint64_t>(100 + step), 0.01);
    const AdamWStep<float> adamw(train.learning_rate() * LearningRateFactor(step, 100, 10, 0.1),
                                 train.beta1(), train.beta2(), train.epsilon(), step);
    for (const PlacedTensor& tensor : plan_.tensors()) {
      for (int64_t i = 0; i < tensor.info.size(); ++i) {
        const auto at = static_cast<size_t>(tensor.offset + i);
        adamw.Apply(gradients[at], tensor.info.decays() ? 0.1F : 0.0F, expected[at], m[at], v[at]);
      }
    }
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(optimizer->updates(), 3);
}

TEST_F(InnerOptimizerTest, SameBitsOnAnyNumberOfThreads) {
  for (const char* name : {"ADAMW", "MUON"}) {
    Prepare(std::string("clip_norm: 0.5 optimizer: ") + name);
    const std::vector<float> start = Values<float>(1, 0.1);
    ThreadPool one(1);
    const std::vector<float> expected = Train(*Make<float>(&one), start, 1, 3);
    for (const int threads : {2, 5}) {
      ThreadPool pool(threads);
      EXPECT_EQ(Train(*Make<float>(&pool), start, 1, 3), expected) << name << " " << threads;
    }
  }
}

TEST_F(InnerOptimizerTest, LargeGradientsAreScaledDownToTheClippingNorm) {
  Prepare("optimizer: ADAMW clip_norm: 2");
  std::vector<double> weights = Values<double>(1, 0.1);
  std::vector<double> small_weights = weights;
  std::vector<double> gradients = Values<double>(5, 1.0);
  double norm = 0;
  for (const double g : gradients) norm += g * g;
  norm = std::sqrt(norm);
  const auto clipping = Make<double>(&pool_);
  const auto report = clipping->Step(1, weights, gradients).value();
  EXPECT_TRUE(report.clipped);
  EXPECT_NEAR(report.gradient_norm, norm, 1e-9 * norm);

  for (double& g : gradients) g *= 2 / norm * 0.999;
  const auto plain = Make<double>(&pool_);
  EXPECT_FALSE(plain->Step(1, small_weights, gradients)->clipped);
  const std::span<double> clipped_m = clipping->first_moments();
  const std::span<double> plain_m = plain->first_moments();
  for (size_t i = 0; i < clipped_m.size(); ++i) {
    ASSERT_NEAR(clipped_m[i] * 0.999, plain_m[i], 1e-12);
  }
}

TEST_F(InnerOptimizerTest, LateJoinerFollowsTheRunsScheduleWithFreshMoments) {
  Prepare("optimizer: ADAMW weight_decay: 0 learning_rate: 0.01 clip_norm: -1");
  const std::vector<double> start = Values<double>(1, 0.1);
  std::vector<double> weights = start;
  const std::vector<double> gradients = Values<double>(5, 1.0);
  const auto optimizer = Make<double>(&pool_);
  const auto report = optimizer->Step(100, weights, gradients).value();
  EXPECT_NEAR(report.learning_rate, 0.001, 1e-15);
  // AdamW's first update has the size of the learning rate, whatever the gradient.
  const auto at = static_cast<size_t>(plan_.tensors()[0].offset);
  EXPECT_NEAR(std::abs(weights[at] - start[at]), 0.001, 1e-8);
}

TEST_F(InnerOptimizerTest, GapsBetweenTensorsStayZero) {
  for (const char* name : {"ADAMW", "MUON"}) {
    Prepare(std::string("optimizer: ") + name);
    const std::vector<float> weights = Train(*Make<float>(&pool_), Values<float>(1, 0.1), 1, 2);
    std::vector<bool> owned(weights.size());
    for (const PlacedTensor& tensor : plan_.tensors()) {
      for (int64_t i = 0; i < tensor.info.size(); ++i) {
        owned[static_cast<size_t>(tensor.offset + i)] = true;
      }
    }
    int gaps = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (owned[i]) continue;
      ++gaps;
      ASSERT_EQ(weights[i], 0.0F);
    }
    EXPECT_GT(gaps, 0);
  }
}

}  // namespace
}  // namespace causeway::worker
