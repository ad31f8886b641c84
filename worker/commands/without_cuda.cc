// Stands for open_cuda.cc in a build without CUDA.
#include "worker/commands/device_choice.h"

namespace causeway::worker {
namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA: build it where nvcc is in PATH or in "
      "/usr/local/cuda/bin (docs/gpu.md), or train on this machine's processors with "
      "--device=cpu");
}

}  // namespace

bool AnyGpu() { return false; }

absl::StatusOr<std::vector<int>> FindGpus(const std::vector<int>&, FileSystem&) {
  return NotBuilt();
}

absl::Status CheckGpus(const std::vector<int>&, FileSystem&) { return NotBuilt(); }

absl::StatusOr<std::string> NewGpuGroupId() { return NotBuilt(); }

absl::StatusOr<std::unique_ptr<ShardedBackend>> MakeShare(const DeviceChoice&, const v1::RunConfig&,
                                                          const FragmentPlan&, FileSystem&,
                                                          const GpuShare&) {
  return NotBuilt();
}

absl::StatusOr<std::unique_ptr<EvaluationModel>> MakeGpuEvaluation(const DeviceChoice&,
                                                                   const v1::ModelConfig&,
                                                                   const FragmentPlan&, int,
                                                                   FileSystem&) {
  return NotBuilt();
}

absl::StatusOr<nlohmann::json> BenchOnGpu(const DeviceChoice&, const BenchOptions&, int, bool,
                                          FileSystem&) {
  return NotBuilt();
}

}  // namespace causeway::worker
