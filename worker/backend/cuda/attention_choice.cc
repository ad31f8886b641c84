#include "worker/backend/cuda/attention_choice.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kAttentionArena[] = "attention's workspace";
constexpr char kLowerByFlag[] = "--attention=own";

using Made = absl::StatusOr<std::unique_ptr<AttentionProvider>>;

std::string KeyOf(const DeviceInfo& device, const AttentionShape& shape) {
  return absl::StrCat(device.name, " ", device.major, ".", device.minor, " attention ",
                      shape.sequences, "x", shape.length, " ", shape.heads, "/", shape.kv_heads,
                      " heads of ", shape.head_dim);
}

Made MakeCudnn(const AttentionChoice& choice, const AttentionShape& shape) {
  if (choice.make_cudnn == nullptr) {
    return absl::FailedPreconditionError(
        "this program was built without cuDNN: build it where cudnn.h and cudnn_frontend.h are "
        "found (docs/gpu.md)");
  }
  return choice.make_cudnn(shape);
}

// An explicit wish that cannot be met.
absl::Status Refused(const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("--attention=cudnn: ", status.message(),
                                   "; or take --attention=own, this program's own kernels"));
}

absl::Status GiveWorkspace(AttentionProvider& provider, DeviceMemory& memory) {
  if (provider.workspace_bytes() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      std::byte* const workspace,
      memory.Allocate<std::byte>(kAttentionArena, static_cast<int64_t>(provider.workspace_bytes()),
                                 kLowerByFlag));
  provider.UseWorkspace(workspace);
  return absl::OkStatus();
}

}  // namespace

AttentionPreference AttentionPreferenceOf(absl::string_view flag) {
  if (flag == "own") return AttentionPreference::kOwn;
  return flag == "cudnn" ? AttentionPreference::kCudnn : AttentionPreference::kAuto;
}

// cuDNN's kernels where they can be had: our own take 13 to 17 % longer on an H200
// (docs/results.md#on-a-gpu). A worker that goes on keeps what its earlier steps had.
Made ChooseAttention(const AttentionChoice& choice, const DeviceInfo& device,
                     const AttentionShape& shape, DeviceMemory* memory) {
  const bool free = choice.preference == AttentionPreference::kAuto;
  const bool asked = choice.preference == AttentionPreference::kCudnn;
  if (choice.document_masking && free) return std::make_unique<OwnAttention>();
  if (choice.document_masking && asked) {
    return Refused(absl::InvalidArgumentError(
        "cuDNN's attention does not keep the documents of a window apart, as the run's "
        "train.document_masking wants it"));
  }
  const std::string key = KeyOf(device, shape);
  const bool keeps_own = choice.plans->FindAttention(key) == kOwnAttention;
  Made made = std::make_unique<OwnAttention>();
  std::string why;  // Own kernels are taken in cuDNN's place.
  if (asked || (free && !choice.sparing && !keeps_own)) {
    Made cudnn = MakeCudnn(choice, shape);
    if (asked && !cudnn.ok()) return Refused(cudnn.status());
    if (absl::IsUnavailable(cudnn.status())) return cudnn.status();
    if (cudnn.ok()) {
      made = std::move(cudnn);
    } else {
      why = absl::StrCat(": ", cudnn.status().message());
    }
  }
  const std::string now = (*made)->name();
  const std::string before = choice.plans->SetAttention(key, now);
  if (before.empty()) {
    if (!why.empty()) choice.inform(absl::StrCat("attention by ", now, why));
  } else if (before != now && free && choice.sparing) {
    choice.warn(absl::StrCat("attention by ", now, ": the workspace of ", before,
                             " does not fit beside the model; steps that it computed before were "
                             "rounded differently"));
  } else if (before != now) {
    choice.warn(absl::StrCat(
        "attention was computed by ", before, " before, and now",
        free ? "" : ", as --attention says,", " by ", now,
        free && why.empty() ? ", which may round differently" : ", which round differently", why));
  }
  RETURN_IF_ERROR(GiveWorkspace(**made, *memory));
  return made;
}

}  // namespace causeway::worker::cuda
