// The CUDA backend with the libraries that it runs on: cuBLASLt, NCCL between several GPUs, and
// cuDNN where it is wanted.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "nlohmann/json.hpp"
#include "worker/sync/backend.h"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/bench.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/sync/local_group.h"

namespace causeway::worker::cuda {

// Whether there is a GPU at all.
bool AnyDevice();
// ListDevices: those of these that exist; empty: of all. None is used.
absl::StatusOr<std::vector<int>> FindDevices(const std::vector<int>& devices, FileSystem& files);
// Whether this program can use them, errors of DiscoverDevices.
absl::Status CheckDevices(const std::vector<int>& devices, FileSystem& files);

struct OpenOptions {
  std::vector<int> devices;            // Empty: all.
  std::optional<Recompute> recompute;  // None: as little as the memory allows.
  bool published_on_device = true;
  bool shard_gradients = false;  // The same in all processes of a site.
  AttentionPreference attention = AttentionPreference::kAuto;
  bool deterministic = true;  // Or cuDNN's attention may add up in any order.
  // The file of what was measured and chosen (GemmPlanStore): read if it exists, and written.
  // Empty: none.
  std::string plan_file;
};

// This process's GPUs in a site of several processes.
struct SiteShare {
  int ranks = 0;
  int first_rank = 0;
  std::string group_id;                // Made by NewGroupId in process 0.
  std::shared_ptr<SharedCause> cause;  // That ends the site.
  // The kept plans of matrix products, in place of options.plan_file: read, then made what there
  // is.
  std::string* plans = nullptr;
};
absl::StatusOr<std::string> NewGroupId();

// `config`, `plan` and `files` outlive the backend. Errors of DiscoverDevices,
// CublasLtLibrary::Open, ChooseAttention and CudaBackend::Create.
absl::StatusOr<std::unique_ptr<TrainingBackend>> OpenCudaBackend(const v1::RunConfig& config,
                                                                 const FragmentPlan& plan,
                                                                 FileSystem& files,
                                                                 const OpenOptions& options);
// The same, of GPUs that are part of a larger site. All its processes call this at the same time.
absl::StatusOr<std::unique_ptr<ShardedBackend>> OpenShare(const v1::RunConfig& config,
                                                          const FragmentPlan& plan,
                                                          FileSystem& files,
                                                          const OpenOptions& options,
                                                          const SiteShare& share);

// ChooseAttention with this program's libraries and log. `deterministic`: MakeCudnnAttention's.
MakeAttention AttentionMaker(AttentionPreference preference, bool deterministic,
                             bool document_masking, std::shared_ptr<GemmPlanStore> plans,
                             bool sparing = false);

// A model to be evaluated on a GPU, the first one if `device` is negative, `windows` at a time.
// Errors of DiscoverDevices, CublasLtLibrary::Open and CudaEvaluation::Create.
absl::StatusOr<std::unique_ptr<EvaluationModel>> OpenCudaEvaluation(const v1::ModelConfig& model,
                                                                    const FragmentPlan& plan,
                                                                    int windows, int device,
                                                                    FileSystem& files);

// The benchmark of the CUDA backend with the library that it runs on, cuBLASLt.

// BenchTraining on one GPU: `device`, or the first one if it is negative. `options` without device,
// make_gemm and make_attention. `attention` and `deterministic` as OpenOptions'. Errors of
// DiscoverDevices, CublasLtLibrary::Open, ChooseAttention and BenchTraining.
absl::StatusOr<nlohmann::json> BenchOnGpu(int device, AttentionPreference attention,
                                          bool deterministic, CudaBenchOptions options,
                                          FileSystem& files);

}  // namespace causeway::worker::cuda
