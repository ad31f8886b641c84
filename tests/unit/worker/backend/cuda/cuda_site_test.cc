// Several processes with GPUs as one backend: it is what one process with all of these GPUs is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/params/initialize.h"
#include "tests/unit/worker/backend/backend_contract.h"
#include "tests/unit/worker/backend/cuda/test_backend.h"
#include "tests/unit/worker/backend/cuda/test_site.h"
#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

std::vector<BackendFactory> SiteFactories() {
  std::vector<BackendFactory> factories;
  if (HaveDevices(2)) {
    factories.push_back(
        {.name = "TwoProcesses", .make = [](const v1::RunConfig& config, const FragmentPlan& plan) {
           return MakeTestSite(config, plan, {1, 1});
         }});
  }
  return factories;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendContract);
INSTANTIATE_TEST_SUITE_P(CudaSite, BackendContract, ::testing::ValuesIn(SiteFactories()),
                         [](const auto& param) { return param.param.name; });

struct TrainedSite {
  std::vector<double> losses;
  std::vector<float> parameters;
  OptimizerState optimizer;
};

TrainedSite Train(const v1::RunConfig& config, TrainingBackend& backend, const FragmentPlan& plan) {
  TrainedSite trained;
  trained.parameters.resize(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, 7, trained.parameters);
  EXPECT_TRUE(backend.SetParameters(trained.parameters).ok());
  const auto micro_batch = static_cast<size_t>(config.train().micro_batch_sequences() * 16);
  for (int64_t step = 1; step <= 3; ++step) {
    const auto report = backend.Step(step, ContractReader(step));
    EXPECT_TRUE(report.ok()) << report.status();
    if (report.ok()) trained.losses.push_back(report->loss);
    // Uses the weights of process 0's GPU for others.
    const std::vector<float> other(trained.parameters.size(), 0.01F);
    EXPECT_TRUE(backend.UseParameters(other).ok());
    const std::vector<int32_t> tokens(micro_batch, 1);
    EXPECT_TRUE(backend.Loss(tokens, tokens, {}).ok());
  }
  EXPECT_TRUE(backend.CopyParameters(trained.parameters).ok());
  trained.optimizer = backend.SaveOptimizer().value();
  return trained;
}

// GPUs by process.
void ExpectTheBitsOfOneProcess(const std::string& settings, const std::vector<int>& devices) {
  const int gpus = std::accumulate(devices.begin(), devices.end(), 0);
  if (!HaveDevices(gpus)) GTEST_SKIP() << "needs " << gpus << " GPUs";
  const v1::RunConfig config =
      ContractConfig(absl::StrCat("train { micro_batch_sequences: 1 } ", settings));
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  const TrainedSite expected = Train(config, *MakeTestBackend(config, plan, gpus), plan);
  const TrainedSite trained = Train(config, *MakeTestSite(config, plan, devices), plan);
  EXPECT_EQ(trained.parameters, expected.parameters);
  EXPECT_EQ(trained.optimizer.first_moments, expected.optimizer.first_moments);
  EXPECT_EQ(trained.optimizer.second_moments, expected.optimizer.second_moments);
  ASSERT_EQ(trained.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(trained.losses[i], expected.losses[i], 1e-12);
  }
}

TEST(CudaSite, TwoProcessesComputeTheBitsOfOne) { ExpectTheBitsOfOneProcess("", {1, 1}); }

TEST(CudaSite, ProcessesWithDifferentNumbersOfGpusComputeTheBitsOfOne) {
  ExpectTheBitsOfOneProcess("train { optimizer: MUON }", {1, 3});
}

#ifdef CAUSEWAY_EMULATED_DEVICE
TEST(CudaSite, ALostGpuOfAnyProcessEndsTheStepWithItsCause) {
  HaveDevices(1);
  for (const int kernels : {1, 2, 3, 50}) {
    emulation::SetMachine({.devices = 4});
    const v1::RunConfig config = ContractConfig();
    const FragmentPlan plan = FragmentPlan::Create(config).value();
    const auto site = MakeTestSite(config, plan, {1, 1});
    const std::vector<float> parameters(static_cast<size_t>(plan.arena_size()), 0.01F);
    ASSERT_TRUE(site->SetParameters(parameters).ok());
    ASSERT_TRUE(site->Step(1, ContractReader(1)).ok());
    emulation::FailAfterKernels(kernels, cudaErrorECCUncorrectable);
    EXPECT_THAT(std::string(site->Step(2, ContractReader(2)).status().message()),
                ::testing::HasSubstr("ECC"));
  }
  emulation::SetMachine({.devices = 4});
}
#endif

}  // namespace
}  // namespace causeway::worker::cuda
