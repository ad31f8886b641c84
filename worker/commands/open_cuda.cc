#include <cstring>

#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/bench.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/cuda_evaluation.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/nccl.h"
#include "worker/commands/device_choice.h"
#ifdef CAUSEWAY_HAVE_CUDNN
#include "worker/backend/cuda/cudnn.h"
#endif

namespace causeway::worker {
namespace cuda {
namespace {

std::vector<int> IndicesOf(const std::vector<DeviceInfo>& devices) {
  std::vector<int> indices;
  for (const DeviceInfo& device : devices) indices.push_back(device.index);
  return indices;
}

// The only GPU of a command that computes on one; `command` begins the refusal of several.
absl::StatusOr<DeviceInfo> OneOf(const DeviceChoice& devices, absl::string_view command,
                                 FileSystem& files) {
  if (devices.gpus.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, " one GPU: name one, as in --device=cuda:0, or none, for the first"));
  }
  ASSIGN_OR_RETURN(const std::vector<DeviceInfo> found,
                   DiscoverDevices({devices.gpus.empty() ? 0 : devices.gpus.front()}, files));
  return found.front();
}

MakeGemm GemmMaker(std::shared_ptr<GemmPlanStore> plans) {
  return [plans = std::move(plans)](const DeviceInfo& device, DeviceMemory* memory) {
    return MakeCublasLtGemm(device, memory, plans.get());
  };
}

// ChooseAttention with this program's libraries and log. `deterministic`: MakeCudnnAttention's.
MakeAttention AttentionMaker(AttentionPreference preference, [[maybe_unused]] bool deterministic,
                             bool document_masking, std::shared_ptr<GemmPlanStore> plans,
                             bool sparing = false) {
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

}  // namespace
}  // namespace cuda

bool AnyGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  return error == cudaSuccess && count > 0;
}

absl::StatusOr<std::vector<int>> FindGpus(const std::vector<int>& gpus, FileSystem& files) {
  return cuda::ListDevices(gpus, files);
}

absl::Status CheckGpus(const std::vector<int>& gpus, FileSystem& files) {
  return cuda::DiscoverDevices(gpus, files).status();
}

absl::StatusOr<std::string> NewGpuGroupId() {
  ASSIGN_OR_RETURN(const cuda::NcclLibrary* const nccl, cuda::NcclLibrary::Load());
  cuda::NcclId id;
  RETURN_IF_ERROR(nccl->Check(nccl->get_unique_id(&id), "beginning a group of GPUs"));
  return std::string(id.bytes, sizeof(id.bytes));
}

absl::StatusOr<std::unique_ptr<ShardedBackend>> MakeShare(const DeviceChoice& choice,
                                                          const v1::RunConfig& config,
                                                          const FragmentPlan& plan,
                                                          FileSystem& files,
                                                          const GpuShare& share) {
  const auto plans = std::make_shared<cuda::GemmPlanStore>();
  if (!share.plans->empty()) RETURN_IF_ERROR(plans->Parse(*share.plans, share.plan_file));
  cuda::CudaBackend::Options backend;
  ASSIGN_OR_RETURN(backend.devices, cuda::DiscoverDevices(choice.gpus, files));
  if (choice.recompute == "none") backend.recompute = cuda::Recompute::kNone;
  if (choice.recompute == "norms") backend.recompute = cuda::Recompute::kNorms;
  if (choice.recompute == "block") backend.recompute = cuda::Recompute::kBlocks;
  backend.published_on_device = choice.published_on_device;
  backend.shard_gradients = choice.shard_gradients;
  const cuda::AttentionPreference attention = cuda::AttentionPreferenceOf(choice.attention);
  const bool document_masking = config.train().document_masking();
  backend.make_attention =
      cuda::AttentionMaker(attention, choice.deterministic, document_masking, plans);
  if (attention == cuda::AttentionPreference::kAuto) {
    backend.make_sparing_attention = cuda::AttentionMaker(
        attention, choice.deterministic, document_masking, plans, /*sparing=*/true);
  }
  backend.make_gemm = cuda::GemmMaker(plans);
  backend.ranks = share.ranks;
  backend.first_rank = share.first_rank;
  backend.make_groups = [&share](const std::vector<cuda::DeviceInfo>& devices)
      -> absl::StatusOr<cuda::CudaBackend::Groups> {
    if (share.ranks == 0) return cuda::MakeNcclGroups(cuda::IndicesOf(devices));
    cuda::NcclSite site{
        .id = {}, .first_rank = share.first_rank, .size = share.ranks, .cause = share.cause};
    if (share.group_id.size() != sizeof(site.id.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("the id of a group of GPUs has ",
                                                     sizeof(site.id.bytes), " bytes, not ",
                                                     share.group_id.size()));
    }
    std::memcpy(site.id.bytes, share.group_id.data(), sizeof(site.id.bytes));
    ASSIGN_OR_RETURN(const cuda::NcclLibrary* const nccl, cuda::NcclLibrary::Load());
    return cuda::MakeNcclGroups(*nccl, cuda::IndicesOf(devices), site);
  };
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaBackend> made,
                   cuda::CudaBackend::Create(config, plan, backend));
  if (plans->changed()) *share.plans = plans->Text();
  return made;
}

absl::StatusOr<std::unique_ptr<EvaluationModel>> MakeGpuEvaluation(const DeviceChoice& choice,
                                                                   const v1::ModelConfig& model,
                                                                   const FragmentPlan& plan,
                                                                   int windows, FileSystem& files) {
  ASSIGN_OR_RETURN(const cuda::DeviceInfo device, cuda::OneOf(choice, "eval computes on", files));
  // Nothing is measured for one evaluation: products are computed as cuBLASLt recommends.
  return cuda::CudaEvaluation::Create(model, plan, windows, device,
                                      cuda::GemmMaker(std::make_shared<cuda::GemmPlanStore>()));
}

absl::StatusOr<nlohmann::json> BenchOnGpu(const DeviceChoice& choice, const BenchOptions& options,
                                          int batch, bool muon, FileSystem& files) {
  cuda::CudaBenchOptions bench;
  bench.model = options.model;
  bench.sequence_length = options.sequence_length;
  bench.micro_batch_sequences = options.micro_batch_sequences;
  bench.batch_sequences = batch;
  bench.steps = options.steps;
  bench.muon = muon;
  ASSIGN_OR_RETURN(bench.device, cuda::OneOf(choice, "bench measures", files));
  const auto plans = std::make_shared<cuda::GemmPlanStore>();
  bench.make_gemm = cuda::GemmMaker(plans);
  bench.make_attention =
      cuda::AttentionMaker(cuda::AttentionPreferenceOf(choice.attention), choice.deterministic,
                           /*document_masking=*/false, plans);
  return cuda::BenchTraining(bench);
}

}  // namespace causeway::worker
