#include "worker/commands/device_choice.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/backend/cpu/cpu_backend.h"
#ifdef CAUSEWAY_HAVE_CUDA
#include "worker/commands/open_cuda.h"
#endif

namespace causeway::worker {
namespace {

using Kind = DeviceChoice::Kind;

#ifdef CAUSEWAY_HAVE_CUDA
cuda::OpenOptions OptionsOf(const DeviceChoice& choice) {
  cuda::OpenOptions options;
  options.devices = choice.gpus;
  if (choice.recompute == "none") options.recompute = cuda::Recompute::kNone;
  if (choice.recompute == "norms") options.recompute = cuda::Recompute::kNorms;
  if (choice.recompute == "block") options.recompute = cuda::Recompute::kBlocks;
  options.published_on_device = choice.published_on_device;
  options.shard_gradients = choice.shard_gradients;
  options.attention = cuda::AttentionPreferenceOf(choice.attention);
  options.deterministic = choice.deterministic;
  return options;
}
#else
absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA: build it where nvcc is in PATH or in "
      "/usr/local/cuda/bin (docs/gpu.md), or train on this machine's processors with "
      "--device=cpu");
}
#endif

// Processors refuse what only GPUs can do.
absl::StatusOr<DeviceChoice> OnProcessors(DeviceChoice choice) {
  if (choice.attention == "cudnn") {
    return absl::InvalidArgumentError(
        "--attention=cudnn is for GPUs, and this computes on the processors: leave it out, or give "
        "--device=cuda");
  }
  choice.kind = Kind::kCpu;
  return choice;
}

}  // namespace

absl::StatusOr<DeviceChoice> ParseDevices(absl::string_view text) {
  DeviceChoice choice;
  if (text == "auto") return choice;
  choice.kind = Kind::kCpu;
  if (text == "cpu") return choice;
  choice.kind = Kind::kCuda;
  if (text == "cuda") return choice;
  absl::string_view list = text;
  bool valid = absl::ConsumePrefix(&list, "cuda:");
  for (const absl::string_view number : absl::StrSplit(list, ',')) {
    int gpu = -1;
    valid = valid && absl::SimpleAtoi(number, &gpu) && gpu >= 0;
    choice.gpus.push_back(gpu);
  }
  if (valid) return choice;
  return absl::InvalidArgumentError(absl::StrCat(
      "--device must be auto, cpu, cuda, or cuda: with numbers of GPUs, as in cuda:0,1; it is \"",
      text, "\""));
}

absl::StatusOr<DeviceChoice> ResolveDevices(const DeviceChoice& choice,
                                            [[maybe_unused]] FileSystem& files) {
  DeviceChoice resolved = choice;
  if (choice.kind == Kind::kCpu) return OnProcessors(choice);
#ifdef CAUSEWAY_HAVE_CUDA
  if (choice.kind == Kind::kAuto && !cuda::AnyDevice()) return OnProcessors(choice);
  RETURN_IF_ERROR(cuda::FindDevices(choice.gpus, files).status());
  resolved.kind = Kind::kCuda;
  return resolved;
#else
  if (choice.kind == Kind::kCuda) return NotBuilt();
  return OnProcessors(choice);
#endif
}

absl::StatusOr<DeviceChoice> ResolveShare(const DeviceChoice& choice,
                                          [[maybe_unused]] const LaunchEnvironment& launch,
                                          FileSystem& files) {
  ASSIGN_OR_RETURN(DeviceChoice resolved, ResolveDevices(choice, files));
#ifdef CAUSEWAY_HAVE_CUDA
  if (resolved.kind == Kind::kCuda) {
    ASSIGN_OR_RETURN(const std::vector<int> visible, cuda::FindDevices(resolved.gpus, files));
    ASSIGN_OR_RETURN(resolved.gpus, DevicesOfProcess(launch, visible));
    RETURN_IF_ERROR(cuda::CheckDevices(resolved.gpus, files));
  }
#endif
  return resolved;
}

absl::StatusOr<std::unique_ptr<TrainingBackend>> MakeBackend(
    const DeviceChoice& choice, const v1::RunConfig& config, const FragmentPlan& plan,
    ThreadPool* pool, [[maybe_unused]] FileSystem& files,
    [[maybe_unused]] const std::string& plan_file) {
  if (choice.kind != Kind::kCuda) return std::make_unique<CpuBackend>(config, plan, pool);
#ifdef CAUSEWAY_HAVE_CUDA
  cuda::OpenOptions options = OptionsOf(choice);
  options.plan_file = plan_file;
  return cuda::OpenCudaBackend(config, plan, files, options);
#else
  return NotBuilt();
#endif
}

absl::StatusOr<std::unique_ptr<EvaluationModel>> MakeGpuEvaluation(
    [[maybe_unused]] const DeviceChoice& choice, [[maybe_unused]] const v1::ModelConfig& model,
    [[maybe_unused]] const FragmentPlan& plan, [[maybe_unused]] int windows,
    [[maybe_unused]] FileSystem& files) {
#ifdef CAUSEWAY_HAVE_CUDA
  if (choice.gpus.size() > 1) {
    return absl::InvalidArgumentError(
        "eval computes on one GPU: name one, as in --device=cuda:0, or none, for the first");
  }
  return cuda::OpenCudaEvaluation(model, plan, windows,
                                  choice.gpus.empty() ? -1 : choice.gpus.front(), files);
#else
  return NotBuilt();
#endif
}

absl::StatusOr<std::string> NewGpuGroupId() {
#ifdef CAUSEWAY_HAVE_CUDA
  return cuda::NewGroupId();
#else
  return NotBuilt();
#endif
}

absl::StatusOr<std::unique_ptr<ShardedBackend>> MakeShare(
    [[maybe_unused]] const DeviceChoice& choice, [[maybe_unused]] const v1::RunConfig& config,
    [[maybe_unused]] const FragmentPlan& plan, [[maybe_unused]] FileSystem& files,
    [[maybe_unused]] const GpuShare& share) {
#ifdef CAUSEWAY_HAVE_CUDA
  return cuda::OpenShare(config, plan, files, OptionsOf(choice),
                         {.ranks = share.range.ranks,
                          .first_rank = share.range.first,
                          .group_id = share.group_id,
                          .cause = share.cause,
                          .plans = share.plans});
#else
  return NotBuilt();
#endif
}

}  // namespace causeway::worker
