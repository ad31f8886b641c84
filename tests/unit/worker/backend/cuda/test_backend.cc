#include "tests/unit/worker/backend/cuda/test_backend.h"

#include "tests/unit/worker/backend/cuda/test_gemm.h"
#include "worker/backend/cuda/nccl.h"
#include "worker/sync/site_backend.h"
#ifdef CAUSEWAY_EMULATED_DEVICE
#include "tests/emulation/emulator.h"
#endif

namespace causeway::worker::cuda {
namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

absl::StatusOr<CudaBackend::Groups> MakeGroups(const std::vector<DeviceInfo>& devices) {
  std::vector<int> indices;
  for (const DeviceInfo& device : devices) indices.push_back(device.index);
  return MakeNcclGroups(indices);
}

}  // namespace

bool HaveDevices(int count) {
#ifdef CAUSEWAY_EMULATED_DEVICE
  static const bool made = [] {
    emulation::SetMachine({.devices = 4});
    return true;
  }();
  return made && count <= 4;
#else
  int present = 0;
  return cudaGetDeviceCount(&present) == cudaSuccess && present >= count;
#endif
}

CudaBackend::Options TestOptions(int devices) {
  HaveDevices(devices);
  CudaBackend::Options options;
  std::vector<int> indices;
  for (int i = 0; i < devices; ++i) indices.push_back(i);
  options.devices = Must(DiscoverDevices(indices, *FileSystem::Real()));
  options.make_gemm = MakeTestGemm;
  options.make_groups = MakeGroups;
  options.least_bucket = 64;     // Several buckets even of a small model.
  options.muon_rank_values = 1;  // And waves of one matrix for each.
  return options;
}

std::unique_ptr<TrainingBackend> MakeTestBackend(const v1::RunConfig& config,
                                                 const FragmentPlan& plan,
                                                 const CudaBackend::Options& options) {
  return std::make_unique<SiteBackend>(config, plan,
                                       Must(CudaBackend::Create(config, plan, options)),
                                       std::vector<SiteBackend::Other>());
}

}  // namespace causeway::worker::cuda
