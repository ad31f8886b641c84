#include "worker/commands/open_cuda.h"

#include <cstring>

#include "common/telemetry/log.h"
#include "worker/backend/cuda/cublaslt.h"
#include "worker/backend/cuda/nccl.h"
#include "worker/sync/site_backend.h"
#ifdef CAUSEWAY_HAVE_CUDNN
#include "worker/backend/cuda/cudnn.h"
#endif

namespace causeway::worker::cuda {
namespace {

std::vector<int> IndicesOf(const std::vector<DeviceInfo>& devices) {
  std::vector<int> indices;
  for (const DeviceInfo& device : devices) indices.push_back(device.index);
  return indices;
}

absl::StatusOr<CudaBackend::Options> BackendOptions(const v1::RunConfig& config, FileSystem& files,
                                                    const OpenOptions& options,
                                                    std::shared_ptr<GemmPlanStore> plans) {
  CudaBackend::Options backend;
  ASSIGN_OR_RETURN(backend.devices, DiscoverDevices(options.devices, files));
  backend.recompute = options.recompute;
  backend.published_on_device = options.published_on_device;
  backend.shard_gradients = options.shard_gradients;
  backend.make_attention = AttentionMaker(options.attention, options.deterministic,
                                          config.train().document_masking(), plans);
  if (options.attention == AttentionPreference::kAuto) {
    backend.make_sparing_attention =
        AttentionMaker(options.attention, options.deterministic, config.train().document_masking(),
                       plans, /*sparing=*/true);
  }
  backend.make_gemm = [plans = std::move(plans)](const DeviceInfo& device, DeviceMemory* memory) {
    return MakeCublasLtGemm(device, memory, plans.get());
  };
  return backend;
}

}  // namespace

bool AnyDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  return error == cudaSuccess && count > 0;
}

absl::StatusOr<std::vector<int>> FindDevices(const std::vector<int>& devices, FileSystem& files) {
  return ListDevices(devices, files);
}

absl::Status CheckDevices(const std::vector<int>& devices, FileSystem& files) {
  return DiscoverDevices(devices, files).status();
}

absl::StatusOr<std::string> NewGroupId() {
  ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Load());
  NcclId id;
  RETURN_IF_ERROR(nccl->Check(nccl->get_unique_id(&id), "beginning a group of GPUs"));
  return std::string(id.bytes, sizeof(id.bytes));
}

absl::StatusOr<std::unique_ptr<TrainingBackend>> OpenCudaBackend(const v1::RunConfig& config,
                                                                 const FragmentPlan& plan,
                                                                 FileSystem& files,
                                                                 const OpenOptions& options) {
  const auto plans = std::make_shared<GemmPlanStore>();
  ASSIGN_OR_RETURN(CudaBackend::Options backend, BackendOptions(config, files, options, plans));
  const bool stores = !options.plan_file.empty();
  if (stores && files.Exists(options.plan_file)) {
    RETURN_IF_ERROR(plans->Read(files, options.plan_file));
  }
  backend.make_groups = [](const std::vector<DeviceInfo>& devices) {
    return MakeNcclGroups(IndicesOf(devices));
  };
  ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> made, CudaBackend::Create(config, plan, backend));
  if (stores && plans->changed()) RETURN_IF_ERROR(plans->Write(files, options.plan_file));
  return std::make_unique<SiteBackend>(config, plan, std::move(made),
                                       std::vector<SiteBackend::Other>());
}

MakeAttention AttentionMaker(AttentionPreference preference, [[maybe_unused]] bool deterministic,
                             bool document_masking, std::shared_ptr<GemmPlanStore> plans,
                             bool sparing) {
  AttentionChoice choice = {.preference = preference,
                            .document_masking = document_masking,
                            .sparing = sparing,
                            .make_cudnn = nullptr,
                            .plans = plans.get(),
                            .warn = [](const std::string& text) { Log().warn("{}", text); },
                            .inform = [](const std::string& text) { Log().info("{}", text); }};
#ifdef CAUSEWAY_HAVE_CUDNN
  choice.make_cudnn = [deterministic](const AttentionShape& shape) {
    return MakeCudnnAttention(shape, deterministic);
  };
#endif
  return [choice, plans = std::move(plans)](const DeviceInfo& device, const AttentionShape& shape,
                                            DeviceMemory* memory) {
    return ChooseAttention(choice, device, shape, memory);
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

absl::StatusOr<std::unique_ptr<ShardedBackend>> OpenShare(const v1::RunConfig& config,
                                                          const FragmentPlan& plan,
                                                          FileSystem& files,
                                                          const OpenOptions& options,
                                                          const SiteShare& share) {
  const auto plans = std::make_shared<GemmPlanStore>();
  ASSIGN_OR_RETURN(CudaBackend::Options backend, BackendOptions(config, files, options, plans));
  if (!share.plans->empty()) {
    RETURN_IF_ERROR(plans->Parse(*share.plans, "matrix_products*.json of this process, in --out,"));
  }
  NcclSite site{
      .id = {}, .first_rank = share.first_rank, .size = share.ranks, .cause = share.cause};
  if (share.group_id.size() != sizeof(site.id.bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the id of a group of GPUs has ",
                                                   sizeof(site.id.bytes), " bytes, not ",
                                                   share.group_id.size()));
  }
  std::memcpy(site.id.bytes, share.group_id.data(), sizeof(site.id.bytes));
  backend.ranks = share.ranks;
  backend.first_rank = share.first_rank;
  backend.make_groups =
      [site](const std::vector<DeviceInfo>& devices) -> absl::StatusOr<CudaBackend::Groups> {
    ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Load());
    return MakeNcclGroups(*nccl, IndicesOf(devices), site);
  };
  ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> made, CudaBackend::Create(config, plan, backend));
  *share.plans = plans->Text();
  return made;
}

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
