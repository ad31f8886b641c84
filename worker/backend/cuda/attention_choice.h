// Which AttentionProvider a worker trains with. Providers round differently, so the choice is kept
// with that of the matrix products (gemm_plan_store.h): a worker that continues repeats its steps,
// or is told why it cannot.
#ifndef CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_CHOICE_H_
#define CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_CHOICE_H_

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/cuda/attention_provider.h"
#include "worker/backend/cuda/gemm_plan_store.h"

namespace causeway::worker::cuda {

enum class AttentionPreference {
  kAuto,   // The store's choice; else the faster of the two, measured once and kept there.
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
  // Milliseconds of a forward and a backward pass; its workspace is given back afterwards.
  std::function<absl::StatusOr<float>(AttentionProvider&, const AttentionShape&, cudaStream_t)>
      time;
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
                                                                   DeviceMemory* memory,
                                                                   cudaStream_t stream);

// AttentionChoice::time: on random values, in memory that is freed again. Waits for the stream.
absl::StatusOr<float> TimeAttention(AttentionProvider& provider, const AttentionShape& shape,
                                    cudaStream_t stream);

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_WORKER_BACKEND_CUDA_ATTENTION_CHOICE_H_
