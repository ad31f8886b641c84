// Whole runs with GPUs: the real coordinator, engine and trainer, on the CUDA backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/params/initialize.h"
#include "tests/integration/sites.h"
#include "tests/unit/worker/backend/cuda/test_backend.h"
#include "tests/unit/worker/backend/cuda/test_site.h"

namespace causeway {
namespace {

Site::MakeBackend OnGpus(int devices) {
  return [devices](const v1::RunConfig& config, const FragmentPlan& plan) {
    return worker::cuda::MakeTestBackend(config, plan, devices);
  };
}

// GPUs by process.
Site::MakeBackend OnProcesses(const std::vector<int>& devices) {
  return [devices](const v1::RunConfig& config, const FragmentPlan& plan) {
    return worker::cuda::MakeTestSite(config, plan, devices);
  };
}

v1::RunConfig GpuRun(const std::string& settings) {
  return SmallRun(absl::StrCat("train { micro_batch_sequences: 2 } ", settings));
}

constexpr char kStreaming[] =
    "train { steps: 14 learning_rate: 1e-2 warmup_steps: 2 } sync { fragments: 2 "
    "steps_between_syncs: 4 overlap_steps: 2 mixing: 0.5 codec_up: INT4 codec_down: INT4 "
    "error_feedback: true } ";

// By the number of GPUs.
class CudaTrainingTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!worker::cuda::HaveDevices(GetParam())) GTEST_SKIP() << "needs more GPUs";
  }
};

TEST_P(CudaTrainingTest, OneWorkerWithOuterRateOneIsPlainTrainingBitForBit) {
  const TestData data;
  const v1::RunConfig config = GpuRun(
      "train { steps: 6 } sync { fragments: 2 steps_between_syncs: 3 codec_up: FP32 "
      "codec_down: FP32 } outer { optimizer: NESTEROV learning_rate: 1 momentum: 0 } "
      "membership { start_workers: 1 max_workers: 1 }");
  TestRun run(config);
  Site site(run.config(), run.plan(), data, run.coordinator(), "only", 1, OnGpus(GetParam()));
  site.Begin();
  site.TrainTo(6);
  site.Finish();

  auto plain = worker::Trainer::Create(run.config(), data.dataset(), 0,
                                       OnGpus(GetParam())(run.config(), run.plan()))
                   .value();
  ASSERT_TRUE(plain->backend().SetParameters(run.initial()).ok());
  std::vector<double> losses;
  for (int64_t step = 1; step <= 6; ++step) {
    losses.push_back(plain->Step(step, (step - 1) * config.train().batch_sequences())->loss);
  }
  std::vector<float> parameters(run.initial().size());
  ASSERT_TRUE(plain->backend().CopyParameters(parameters).ok());
  EXPECT_EQ(site.losses(), losses);
  EXPECT_EQ(site.Parameters(), parameters);
  EXPECT_NE(parameters, run.initial());
}

TEST_P(CudaTrainingTest, AWorkerRestartedFromItsCheckpointContinuesBitForBit) {
  const TestData data;
  const v1::RunConfig config =
      GpuRun(absl::StrCat(kStreaming, "membership { start_workers: 1 max_workers: 1 }"));
  const auto site_of = [&](TestRun& run) {
    return std::make_unique<Site>(run.config(), run.plan(), data, run.coordinator(), "worker-0", 1,
                                  OnGpus(GetParam()));
  };
  TestRun whole(config);
  const std::unique_ptr<Site> undisturbed = site_of(whole);
  undisturbed->Begin();
  undisturbed->TrainTo(14);
  undisturbed->Finish();

  TestRun run(config);
  const TemporaryFolder folder;
  const std::string path = JoinPath(folder.path(), "checkpoint");
  {
    const std::unique_ptr<Site> before = site_of(run);
    before->Begin();
    before->TrainTo(7);
    ASSERT_TRUE(before->sync().FinishPushes().ok());
    ASSERT_TRUE(worker::WriteWorkerCheckpoint(*FileSystem::Real(), path, before->Save()).ok());
    ASSERT_TRUE(before->exchange().Leave(v1::Leave::DRAINED).ok());
  }
  const std::unique_ptr<Site> after = site_of(run);
  after->Restore(worker::ReadWorkerCheckpoint(*FileSystem::Real(), path).value());
  after->TrainTo(14);
  after->Finish();
  EXPECT_EQ(after->Parameters(), undisturbed->Parameters());
  EXPECT_EQ(run.coordinator().PublishedParameters(), whole.coordinator().PublishedParameters());
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudaTrainingTest, ::testing::Values(1, 2));

// In two processes, with everything that a checkpoint has brought from one to the other and back.
TEST(CudaTraining, TwoProcessesTrainAndContinueAsOneDoes) {
  if (!worker::cuda::HaveDevices(2)) GTEST_SKIP() << "needs more GPUs";
  const TestData data;
  const v1::RunConfig config =
      GpuRun(absl::StrCat(kStreaming, "membership { start_workers: 1 max_workers: 1 }"));
  TestRun one(config);
  Site together(one.config(), one.plan(), data, one.coordinator(), "worker-0", 1, OnGpus(2));
  together.Begin();
  together.TrainTo(14);
  together.Finish();

  TestRun run(config);
  std::optional<worker::WorkerCheckpoint> checkpoint;
  {
    Site before(run.config(), run.plan(), data, run.coordinator(), "worker-0", 1,
                OnProcesses({1, 1}));
    before.Begin();
    before.TrainTo(7);
    ASSERT_TRUE(before.sync().FinishPushes().ok());
    checkpoint = before.Save();
    ASSERT_TRUE(before.exchange().Leave(v1::Leave::DRAINED).ok());
  }
  Site after(run.config(), run.plan(), data, run.coordinator(), "worker-0", 1, OnProcesses({1, 1}));
  after.Restore(*std::move(checkpoint));
  after.TrainTo(14);
  after.Finish();
  EXPECT_EQ(after.Parameters(), together.Parameters());
  EXPECT_EQ(run.coordinator().PublishedParameters(), one.coordinator().PublishedParameters());
}

// The codes of both are the same bytes, so one coordinator takes them from both.
TEST(CudaTraining, GpusAndCpusTrainOneModelTogether) {
  ASSERT_TRUE(worker::cuda::HaveDevices(1));
  const TestData data;
  TestRun run(GpuRun(absl::StrCat(kStreaming, "membership { start_workers: 2 max_workers: 2 }")));
  Site cpu(run.config(), run.plan(), data, run.coordinator(), "cpu");
  Site gpu(run.config(), run.plan(), data, run.coordinator(), "gpu", 1, OnGpus(1));
  cpu.Begin();
  gpu.Begin();
  std::thread other([&] {
    cpu.TrainTo(14);
    cpu.Finish();
  });
  gpu.TrainTo(14);
  gpu.Finish();
  other.join();
  EXPECT_LT(gpu.losses().back(), 0.9 * gpu.losses().front());
  EXPECT_LT(cpu.losses().back(), 0.9 * cpu.losses().front());
  // They drew different windows of the same text, with the same weights to begin with.
  EXPECT_NEAR(gpu.losses().front(), cpu.losses().front(), 0.1);
  const std::vector<float> published = run.coordinator().PublishedParameters();
  EXPECT_TRUE(std::ranges::equal(*gpu.sync().published(), published));
  EXPECT_TRUE(std::ranges::equal(*cpu.sync().published(), published));
}

}  // namespace
}  // namespace causeway
