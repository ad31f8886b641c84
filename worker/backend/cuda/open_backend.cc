#include "worker/backend/cuda/open_backend.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "worker/backend/cuda/cublaslt_gemm.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/cuda_evaluation.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/gemm_plan_store.h"
#include "worker/backend/cuda/nccl_group.h"
#ifdef CAUSEWAY_HAVE_CUDNN
#include "worker/backend/cuda/cudnn_attention.h"
#endif

namespace causeway::worker::cuda {

bool AnyDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  return error == cudaSuccess && count > 0;
}

absl::Status CheckDevices(const std::vector<int>& devices, FileSystem& files) {
  return DiscoverDevices(devices, files).status();
}

absl::StatusOr<std::unique_ptr<TrainingBackend>> OpenCudaBackend(const v1::RunConfig& config,
                                                                 const FragmentPlan& plan,
                                                                 FileSystem& files,
                                                                 const OpenOptions& options) {
  CudaBackend::Options backend;
  ASSIGN_OR_RETURN(backend.devices, DiscoverDevices(options.devices, files));
  backend.recompute = options.recompute;
  backend.published_on_device = options.published_on_device;
  const auto plans = std::make_shared<GemmPlanStore>();
  const bool stores = !options.plan_file.empty();
  if (stores && files.Exists(options.plan_file)) {
    RETURN_IF_ERROR(plans->Read(files, options.plan_file));
  }
  backend.make_gemm = [plans](const DeviceInfo& device, DeviceMemory* memory) {
    return MakeCublasLtGemm(device, memory, plans.get());
  };
  backend.make_attention =
      [plans,
       make = AttentionMaker(options.attention, config.train().document_masking(), plans.get())](
          const DeviceInfo& device, const AttentionShape& shape, DeviceMemory* memory,
          cudaStream_t stream) { return make(device, shape, memory, stream); };
  backend.make_groups = [](const std::vector<DeviceInfo>& devices) {
    std::vector<int> indices;
    for (const DeviceInfo& device : devices) indices.push_back(device.index);
    return MakeNcclGroups(indices);
  };
  ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> made, CudaBackend::Create(config, plan, backend));
  if (stores && plans->changed()) RETURN_IF_ERROR(plans->Write(files, options.plan_file));
  return made;
}

MakeAttention AttentionMaker(AttentionPreference preference, bool document_masking,
                             GemmPlanStore* plans) {
  AttentionChoice choice = {.preference = preference,
                            .document_masking = document_masking,
                            .make_cudnn = nullptr,
                            .time = TimeAttention,
                            .plans = plans,
                            .warn = [](const std::string& text) { Log().warn("{}", text); }};
#ifdef CAUSEWAY_HAVE_CUDNN
  choice.make_cudnn = MakeCudnnAttention;
#endif
  return [choice](const DeviceInfo& device, const AttentionShape& shape, DeviceMemory* memory,
                  cudaStream_t stream) {
    return ChooseAttention(choice, device, shape, memory, stream);
  };
}

absl::StatusOr<std::unique_ptr<EvaluationModel>> OpenCudaEvaluation(const v1::ModelConfig& model,
                                                                    const FragmentPlan& plan,
                                                                    int windows, int device,
                                                                    FileSystem& files) {
  ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices,
                   DiscoverDevices({device < 0 ? 0 : device}, files));
  // Nothing is measured for one evaluation: products are computed as cuBLASLt recommends.
  return CudaEvaluation::Create(
      model, plan, windows, devices.front(),
      [plans = std::make_shared<GemmPlanStore>()](const DeviceInfo& info, DeviceMemory* memory) {
        return MakeCublasLtGemm(info, memory, plans.get());
      });
}

}  // namespace causeway::worker::cuda
