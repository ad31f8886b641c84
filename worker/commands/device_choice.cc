#include "worker/commands/device_choice.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/sync/site_backend.h"

namespace causeway::worker {
namespace {

using Kind = DeviceChoice::Kind;

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

absl::StatusOr<DeviceChoice> ResolveDevices(const DeviceChoice& choice, FileSystem& files) {
  if (choice.kind == Kind::kCpu || (choice.kind == Kind::kAuto && !AnyGpu())) {
    return OnProcessors(choice);
  }
  RETURN_IF_ERROR(FindGpus(choice.gpus, files).status());
  DeviceChoice resolved = choice;
  resolved.kind = Kind::kCuda;
  return resolved;
}

absl::StatusOr<DeviceChoice> ResolveShare(const DeviceChoice& choice,
                                          const LaunchEnvironment& launch, FileSystem& files) {
  ASSIGN_OR_RETURN(DeviceChoice resolved, ResolveDevices(choice, files));
  if (resolved.kind != Kind::kCuda) {
    const std::string why = choice.kind == Kind::kCpu
                                ? "--device=cpu"
                                : std::string(FindGpus({}, files).status().message());
    return absl::InvalidArgumentError(absl::StrCat(
        "WORLD_SIZE is ", launch.processes, ", and this process has no GPU (", why, ")",
        ": several processes are one worker on GPUs alone. On processors unset RANK and WORLD_SIZE "
        "and start one process with --threads, or each as a worker with an --id of its own; or "
        "train with PyTorch (docs/pytorch.md)"));
  }
  ASSIGN_OR_RETURN(const std::vector<int> visible, FindGpus(resolved.gpus, files));
  ASSIGN_OR_RETURN(resolved.gpus, DevicesOfProcess(launch, visible));
  RETURN_IF_ERROR(CheckGpus(resolved.gpus, files));
  return resolved;
}

absl::StatusOr<std::unique_ptr<TrainingBackend>> MakeBackend(const DeviceChoice& choice,
                                                             const v1::RunConfig& config,
                                                             const FragmentPlan& plan,
                                                             ThreadPool* pool, FileSystem& files,
                                                             const std::string& plan_file) {
  if (choice.kind != Kind::kCuda) return std::make_unique<CpuBackend>(config, plan, pool);
  ASSIGN_OR_RETURN(std::string plans, ReadPlans(plan_file, files));
  const std::string before = plans;
  GpuShare all;
  all.plans = &plans;
  all.plan_file = plan_file;
  ASSIGN_OR_RETURN(std::unique_ptr<ShardedBackend> own,
                   MakeShare(choice, config, plan, files, all));
  RETURN_IF_ERROR(KeepPlans(before, plans, plan_file, files));
  return std::make_unique<SiteBackend>(config, plan, std::move(own),
                                       std::vector<SiteBackend::Other>());
}

absl::StatusOr<std::string> ReadPlans(const std::string& plan_file, FileSystem& files) {
  if (!files.Exists(plan_file)) return std::string();
  return files.ReadFile(plan_file);
}

absl::Status KeepPlans(const std::string& before, const std::string& now,
                       const std::string& plan_file, FileSystem& files) {
  if (now == before) return absl::OkStatus();
  return WriteFileAtomically(files, plan_file, absl::string_view(now));
}

}  // namespace causeway::worker
