// Which AttentionProvider a worker trains with. Providers round differently, so the choice is kept
// with that of the matrix products (gemm_plan_store.h): a worker that continues repeats its steps,
// or is told why it cannot.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_CHOICE_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_CHOICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/cuda/attention_provider.h"
#include "worker/backend/cuda/gemm_plan_store.h"

namespace causeway::worker::cuda {

enum class AttentionPreference {
  kAuto,   // The store's choice; else cuDNN where it takes the shape, and kept there.
  kOwn,    // The kernels of attention.h.
  kCudnn,  // cuDNN, or an error.
};

// Reads --attention: "auto", "own" or "cudnn"; nothing else.
AttentionPreference AttentionPreferenceOf(absl::string_view flag);

struct AttentionChoice {
  AttentionPreference preference = AttentionPreference::kAuto;
  // train.document_masking: cuDNN's kernels do not keep documents apart, so that kAuto takes our
  // own.
  bool document_masking = false;
  // With kAuto: cuDNN's workspace does not fit beside the model, and ours need none.
  bool sparing = false;
  // Makes cuDNN's for a shape; its errors say what is missing or not supported. Null: this program
  // was built without it.
  std::function<absl::StatusOr<std::unique_ptr<AttentionProvider>>(const AttentionShape&)>
      make_cudnn;
  GemmPlanStore* plans = nullptr;
  // Told when the steps that follow will not have the bits of those before.
  std::function<void(const std::string&)> warn;
  // Told why a new choice fell as it did.
  std::function<void(const std::string&)> inform;
};

// The provider for `shape`, with its workspace from `memory`. Thread-safe if what `choice` points
// at is: the GPUs of a machine come to the same answer. FAILED_PRECONDITION or INVALID_ARGUMENT,
// with what to do, where kCudnn cannot be; RESOURCE_EXHAUSTED for the workspace; errors of the
// device.
absl::StatusOr<std::unique_ptr<AttentionProvider>> ChooseAttention(const AttentionChoice& choice,
                                                                   const DeviceInfo& device,
                                                                   const AttentionShape& shape,
                                                                   DeviceMemory* memory);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_CHOICE_H_
