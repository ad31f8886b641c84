// The CUDA backend with the libraries that it runs on: cuBLASLt, NCCL between several GPUs, and
// cuDNN where it is wanted.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_OPEN_BACKEND_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_OPEN_BACKEND_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/config.pb.h"
#include "common/base/file_system.h"
#include "common/params/fragment_plan.h"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/cuda_transformer.h"
#include "worker/train/backend.h"
#include "worker/train/evaluation_model.h"

namespace causeway::worker::cuda {

// Whether there is a GPU at all.
bool AnyDevice();
// OK if DiscoverDevices finds all of these; empty: any.
absl::Status CheckDevices(const std::vector<int>& devices, FileSystem& files);

struct OpenOptions {
  std::vector<int> devices;            // Empty: all.
  std::optional<Recompute> recompute;  // None: as little as the memory allows.
  bool published_on_device = true;
  AttentionPreference attention = AttentionPreference::kAuto;
  // The file of what was measured and chosen (gemm_plan_store.h): read if it exists, and written.
  // Empty: none.
  std::string plan_file;
};

// `config`, `plan` and `files` outlive the backend. Errors of DiscoverDevices,
// CublasLtLibrary::Open, ChooseAttention and CudaBackend::Create.
absl::StatusOr<std::unique_ptr<TrainingBackend>> OpenCudaBackend(const v1::RunConfig& config,
                                                                 const FragmentPlan& plan,
                                                                 FileSystem& files,
                                                                 const OpenOptions& options);

// ChooseAttention with this program's libraries, `plans` and log; both are used later.
MakeAttention AttentionMaker(AttentionPreference preference, bool document_masking,
                             GemmPlanStore* plans);

// A model to be evaluated on a GPU, the first one if `device` is negative, `windows` at a time.
// Errors of DiscoverDevices, CublasLtLibrary::Open and CudaEvaluation::Create.
absl::StatusOr<std::unique_ptr<EvaluationModel>> OpenCudaEvaluation(const v1::ModelConfig& model,
                                                                    const FragmentPlan& plan,
                                                                    int windows, int device,
                                                                    FileSystem& files);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_OPEN_BACKEND_H_
