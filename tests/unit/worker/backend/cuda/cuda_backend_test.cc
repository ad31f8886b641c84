#include "worker/backend/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file_system.h"
#include "tests/emulation/emulator.h"
#include "tests/unit/worker/backend/cuda/test_gemm.h"
#include "tests/unit/worker/train/backend_contract.h"
#include "worker/group/thread_group.h"

namespace causeway::worker::cuda {
namespace {

CudaBackend::Options TestOptions(int devices = 1) {
  CudaBackend::Options options;
  std::vector<int> indices;
  for (int i = 0; i < devices; ++i) indices.push_back(i);
  options.devices = DiscoverDevices(indices, *FileSystem::Real()).value();
  options.make_gemm = MakeTestGemm;
  return options;
}

CudaBackend::Options SeveralDevices(int devices) {
  CudaBackend::Options options = TestOptions(devices);
  options.least_bucket = 64;  // Several buckets even of a small model.
  options.make_groups =
      [](const std::vector<DeviceInfo>& of) -> absl::StatusOr<CudaBackend::Groups> {
    return ThreadGroup::Create(static_cast<int>(of.size()), [](GroupStream stream) {
      return CheckCuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "a collective");
    });
  };
  return options;
}

std::unique_ptr<TrainingBackend> MakeTwo(const v1::RunConfig& config, const FragmentPlan& plan) {
  return CudaBackend::Create(config, plan, SeveralDevices(2)).value();
}

std::unique_ptr<TrainingBackend> MakeOne(const v1::RunConfig& config, const FragmentPlan& plan) {
  return CudaBackend::Create(config, plan, TestOptions()).value();
}

INSTANTIATE_TEST_SUITE_P(Cuda, BackendContract,
                         ::testing::Values(BackendFactory{"cuda", MakeOne},
                                           BackendFactory{"cuda:0,1", MakeTwo}),
                         [](const auto& param) { return param.index == 0 ? "OneGpu" : "TwoGpus"; });

class FourDevices : public ::testing::Environment {
 public:
  void SetUp() override { emulation::SetMachine({.devices = 4}); }
};
const auto* const kFourDevices = ::testing::AddGlobalTestEnvironment(new FourDevices);

}  // namespace
}  // namespace causeway::worker::cuda
