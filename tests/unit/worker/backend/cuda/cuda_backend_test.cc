#include "worker/backend/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file_system.h"
#include "tests/unit/worker/backend/cuda/test_gemm.h"
#include "tests/unit/worker/train/backend_contract.h"

namespace causeway::worker::cuda {
namespace {

CudaBackend::Options TestOptions(int devices = 1) {
  CudaBackend::Options options;
  std::vector<int> indices;
  for (int i = 0; i < devices; ++i) indices.push_back(i);
  options.devices = DiscoverDevices(indices, *FileSystem::Real()).value();
  options.make_gemm = [](const DeviceInfo&, DeviceMemory*) { return MakeTestGemm(); };
  return options;
}

std::unique_ptr<TrainingBackend> MakeOne(const v1::RunConfig& config, const FragmentPlan& plan) {
  return CudaBackend::Create(config, plan, TestOptions()).value();
}

INSTANTIATE_TEST_SUITE_P(Cuda, BackendContract, ::testing::Values(BackendFactory{"cuda", MakeOne}));

}  // namespace
}  // namespace causeway::worker::cuda
