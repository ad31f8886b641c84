// Who computes attention on a GPU: the kernels of attention.h, or cuDNN (libraries/cudnn.h).
// Layouts and meaning are those of attention.h, and so is what the backward pass needs of the
// forward pass.
//
// Calls enqueue and return; they may be captured in a graph once a first one has run. Nothing is
// allocated after UseWorkspace. The same input gives the same bits every time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/attention.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {

// One GPU's, made and used by its thread.
class AttentionProvider {
 public:
  virtual ~AttentionProvider() = default;

  // With the version of what rounds in its own way: providers of one name give the same bits.
  virtual std::string name() const = 0;
  // Device memory that it works in, aligned to 256 bytes; it outlives the provider. Before the
  // first pass.
  virtual size_t workspace_bytes() const { return 0; }
  virtual void UseWorkspace(void* /*workspace*/) {}

  virtual absl::Status Forward(const AttentionCall& call, cudaStream_t stream) = 0;
  virtual absl::Status Backward(const AttentionCall& call, cudaStream_t stream) = 0;
};

// Makes the attention of the windows of training on the calling thread's device. Called by every
// GPU's thread.
using MakeAttention = std::function<absl::StatusOr<std::unique_ptr<AttentionProvider>>(
    const DeviceInfo& device, const AttentionShape& shape, DeviceMemory* memory)>;

inline constexpr char kOwnAttention[] = "own kernels";

// The kernels of attention.h.
class OwnAttention final : public AttentionProvider {
 public:
  std::string name() const override { return kOwnAttention; }
  absl::Status Forward(const AttentionCall& call, cudaStream_t stream) override {
    AttentionForward(call, stream);
    return absl::OkStatus();
  }
  absl::Status Backward(const AttentionCall& call, cudaStream_t stream) override {
    AttentionBackward(call, stream);
    return absl::OkStatus();
  }
};

// Which AttentionProvider a worker trains with. Providers round differently, so the choice is kept
// with that of the matrix products (GemmPlanStore): a worker that continues repeats its steps,
// or is told why it cannot.

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
