#include "worker/backend/cuda/open/open_bench.h"

#include <memory>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/backend/cuda/cublaslt/cublaslt_gemm.h"
#include "worker/backend/cuda/device/device.h"
#include "worker/backend/cuda/gemm_plan_store.h"
#include "worker/backend/cuda/open/open_backend.h"

namespace causeway::worker::cuda {

absl::StatusOr<nlohmann::json> BenchOnGpu(int device, AttentionPreference attention,
                                          bool deterministic, CudaBenchOptions options,
                                          FileSystem& files) {
  ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices,
                   DiscoverDevices({device < 0 ? 0 : device}, files));
  options.device = devices.front();
  const auto plans = std::make_shared<GemmPlanStore>();
  options.make_gemm = [plans](const DeviceInfo& info, DeviceMemory* memory) {
    return MakeCublasLtGemm(info, memory, plans.get());
  };
  options.make_attention =
      AttentionMaker(attention, deterministic, /*document_masking=*/false, plans);
  return BenchTraining(options);
}

}  // namespace causeway::worker::cuda
