// Which devices a command computes on, and the backends that they make.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cpu/bench.h"
#include "worker/member/rendezvous.h"
#include "worker/sync/backend.h"
#include "worker/sync/local_group.h"

namespace causeway::worker {

struct DeviceChoice {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::vector<int> gpus;  // With kCuda: which; empty: all.
  // How much of a forward pass is computed again in the backward pass, to save memory: auto, none,
  // norms or block. The bits are the same.
  std::string recompute = "auto";
  bool published_on_device = true;  // The published copy: or in the host's memory.
  bool shard_gradients = false;     // Each of several GPUs keeps its share of the gradients.
  // Who computes attention: auto, own or cudnn. The bits differ.
  std::string attention = "auto";
  // cuDNN's attention gives the same bits every time; or it may add up in any order.
  bool deterministic = true;
};

// auto, cpu, cuda, cuda:0 or cuda:0,2. INVALID_ARGUMENT with what may be said.
absl::StatusOr<DeviceChoice> ParseDevices(absl::string_view text);

// Never kAuto: that becomes kCuda where there is a GPU, else kCpu. FAILED_PRECONDITION, with what
// was looked for and how to go on, where kCuda was asked for and cannot be; INVALID_ARGUMENT for a
// GPU that does not exist.
absl::StatusOr<DeviceChoice> ResolveDevices(const DeviceChoice& choice, FileSystem& files);

// The same, of one of a site's processes on this machine: `gpus` are its share of them.
// INVALID_ARGUMENT, with what to do instead, where it would be kCpu.
absl::StatusOr<DeviceChoice> ResolveShare(const DeviceChoice& choice,
                                          const LaunchEnvironment& launch, FileSystem& files);

// `choice` is resolved. `pool`, `config`, `plan` and `files` outlive the backend. `plan_file`:
// where what a GPU computes with, once measured, is kept. Errors of the backend.
absl::StatusOr<std::unique_ptr<TrainingBackend>> MakeBackend(const DeviceChoice& choice,
                                                             const v1::RunConfig& config,
                                                             const FragmentPlan& plan,
                                                             ThreadPool* pool, FileSystem& files,
                                                             const std::string& plan_file);

// The measurements in such a file, as text; empty if there is none.
absl::StatusOr<std::string> ReadPlans(const std::string& plan_file, FileSystem& files);
// Writes what has become of them, if it is something else.
absl::Status KeepPlans(const std::string& before, const std::string& now,
                       const std::string& plan_file, FileSystem& files);

// A process's share of a site's GPUs, which are ranks. All processes make theirs at the same time.
struct GpuShare {
  int first_rank = 0;
  int ranks = 0;                       // Of the site; 0: it is the only process.
  std::string group_id;                // Made by process 0's NewGpuGroupId.
  std::shared_ptr<SharedCause> cause;  // That ends the site.
  std::string* plans = nullptr;        // Measurements: those known before, then all.
  // Name that messages give their file.
  std::string plan_file = "matrix_products*.json of this process, in --out,";
};

// --- On GPUs (open_cuda.cc) ---
// In a build without CUDA each says that it is one.

// Whether there is a GPU at all.
bool AnyGpu();
// ListDevices: those of these that exist; empty: of all. None is used.
absl::StatusOr<std::vector<int>> FindGpus(const std::vector<int>& gpus, FileSystem& files);
// Whether this program can use them, errors of DiscoverDevices.
absl::Status CheckGpus(const std::vector<int>& gpus, FileSystem& files);

absl::StatusOr<std::string> NewGpuGroupId();
// `choice` is ResolveShare's, or ResolveDevices'; `config`, `plan` and `files` outlive the backend.
// Errors of DiscoverDevices, CublasLtLibrary::Open, ChooseAttention and CudaBackend::Create.
absl::StatusOr<std::unique_ptr<ShardedBackend>> MakeShare(const DeviceChoice& choice,
                                                          const v1::RunConfig& config,
                                                          const FragmentPlan& plan,
                                                          FileSystem& files, const GpuShare& share);

// Makes what `choice`, resolved and on GPUs, evaluates on: one GPU, the first unless one is named.
// INVALID_ARGUMENT if several are; errors of CudaEvaluation.
absl::StatusOr<std::unique_ptr<EvaluationModel>> MakeGpuEvaluation(const DeviceChoice& choice,
                                                                   const v1::ModelConfig& model,
                                                                   const FragmentPlan& plan,
                                                                   int windows, FileSystem& files);

// BenchTraining of backend/cuda/bench.h likewise, on `choice`: steps of `batch` windows (0: one
// micro-batch), with Muon in place of AdamW. INVALID_ARGUMENT if several GPUs are named; errors of
// DiscoverDevices, CublasLtLibrary::Open, ChooseAttention and BenchTraining.
absl::StatusOr<nlohmann::json> BenchOnGpu(const DeviceChoice& choice, const BenchOptions& options,
                                          int batch, bool muon, FileSystem& files);

}  // namespace causeway::worker
