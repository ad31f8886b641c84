// Synchronization that should change nothing changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "tests/integration/sites.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace causeway {
namespace {

// Plain training: the same steps without any coordinator.
struct PlainResult {
  std::vector<float> parameters;
  std::vector<double> losses;
};

PlainResult TrainPlain(const v1::RunConfig& config, const TestData& data, int64_t steps) {
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  ThreadPool pool(1);
  auto trainer = worker::Trainer::Create(config, data.dataset(), 0,
                                         std::make_unique<worker::CpuBackend>(config, plan, &pool))
                     .value();
  PlainResult result;
  result.parameters.resize(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, config.train().seed(), result.parameters);
  EXPECT_TRUE(trainer->backend().SetParameters(result.parameters).ok());
  for (int64_t step = 1; step <= steps; ++step) {
    result.losses.push_back(
        trainer->Step(step, (step - 1) * config.train().batch_sequences()).value().loss);
  }
  EXPECT_TRUE(trainer->backend().CopyParameters(result.parameters).ok());
  return result;
}

double RelativeDifference(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

class NeutralityTest : public ::testing::TestWithParam<const char*> {
 protected:
  // One worker with those settings of synchronization, and an outer rate of one.
  void ExpectPlainTraining(absl::string_view sync) {
    const TestData data;
    const v1::RunConfig config = SmallRun(absl::StrCat(
        "train { steps: 60 optimizer: ", GetParam(),
        " } sync { fragments: 2 steps_between_syncs: 6 codec_up: FP32 codec_down: FP32 ", sync,
        " } outer { optimizer: NESTEROV learning_rate: 1 momentum: 0 } "
        "membership { start_workers: 1 max_workers: 1 }"));
    TestRun run(config);
    Site site(run.config(), run.plan(), data, run.coordinator(), "only");
    site.Begin();
    site.TrainTo(60);
    site.Finish();
    const PlainResult plain = TrainPlain(config, data, 60);
    EXPECT_EQ(site.losses(), plain.losses);
    const std::vector<float> local = site.Parameters();
    ASSERT_EQ(local.size(), plain.parameters.size());
    for (size_t i = 0; i < local.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(local[i]), std::bit_cast<uint32_t>(plain.parameters[i]))
          << "value " << i;
    }
    EXPECT_LT(plain.losses.back(), 0.8 * plain.losses.front());  // It did learn something.
  }
};

TEST_P(NeutralityTest, OneWorkerWithOuterRateOneIsPlainTrainingBitForBit) {
  ExpectPlainTraining("");
}

TEST_P(NeutralityTest, OneWorkerThatKeepsAllInFlightIsPlainTrainingWhateverTheOverlap) {
  ExpectPlainTraining("overlap_steps: 4 keep_in_flight: 1");
}

INSTANTIATE_TEST_SUITE_P(InnerOptimizers, NeutralityTest, ::testing::Values("ADAMW", "MUON"));

TEST(DataParallelTest, TwoWorkersAreOneWorkerWithTwiceTheBatch) {
  const TestData data;
  const std::string train = "train { steps: 30 learning_rate: 3e-3 } ";
  const v1::RunConfig config = SmallRun(
      train +
      "sync { contribution: GRADIENT steps_between_syncs: 1 codec_up: FP32 codec_down: FP32 } "
      "outer { optimizer: ADAMW } membership { start_workers: 2 max_workers: 2 }");
  TestRun run(config);
  const std::vector<float> published = run.TrainAll(data, 2);

  v1::RunConfig twice = SmallRun(train +
                                 "membership { start_workers: 1 max_workers: 1 } "
                                 "sync { steps_between_syncs: 30 }");
  twice.mutable_train()->set_batch_sequences(2 * config.train().batch_sequences());
  twice.mutable_train()->set_micro_batch_sequences(2 * config.train().batch_sequences());
  const PlainResult plain = TrainPlain(twice, data, 30);
  // AdamW divides by the root of the second moment, so a difference of rounding in a gradient
  // near zero may become one of a learning rate in its weight: compare the whole, not each value.
  const double difference = RelativeDifference(published, plain.parameters);
  RecordProperty("relative_difference", absl::StrCat(difference));
  EXPECT_LT(difference, 1e-5);
  EXPECT_GT(RelativeDifference(run.initial(), plain.parameters), 0.1);
}

}  // namespace
}  // namespace causeway
