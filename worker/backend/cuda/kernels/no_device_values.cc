// In place of device_values.cc, in builds without CUDA.
#include "worker/site/device_values.h"

namespace causeway::worker {

int SwapDevice(int /*device*/) { return -1; }

absl::Status CheckDeviceValues(int /*device*/) {
  return absl::FailedPreconditionError(
      "this library was built without CUDA: build it where nvcc is in PATH or in "
      "/usr/local/cuda/bin (docs/gpu.md)");
}

absl::StatusOr<std::unique_ptr<DeviceValues>> OpenDeviceValues(const FragmentPlan& /*plan*/,
                                                               const ShardPlan& /*shards*/,
                                                               int /*rank*/, int device,
                                                               const v1::SyncConfig& /*sync*/,
                                                               const TensorMatch& /*match*/,
                                                               const DeviceOptions& /*options*/) {
  return CheckDeviceValues(device);
}

}  // namespace causeway::worker
