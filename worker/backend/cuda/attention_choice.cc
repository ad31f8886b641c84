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

// cuDNN's kernels where they can be had: our own take 13 to 17 % longer on an H200
// (docs/results.md#on-a-gpu). A worker that goes on keeps what its earlier steps had.
Made ChooseFreely(const AttentionChoice& choice, const std::string& key,
                  const AttentionShape& shape) {
  const std::string stored = choice.plans->FindAttention(key);
  if (stored == kOwnAttention) return std::make_unique<OwnAttention>();
  Made made = MakeCudnn(choice, shape);
  if (absl::IsUnavailable(made.status())) return made.status();
  if (!made.ok()) {
    if (stored.empty()) {
      choice.inform(absl::StrCat("attention by ", kOwnAttention, ": ", made.status().message()));
    } else {
      choice.warn(absl::StrCat("attention was computed by ", stored, " before, and now by ",
                               kOwnAttention,
                               ", which round differently: ", made.status().message()));
    }
    made = std::make_unique<OwnAttention>();
  } else if (!stored.empty() && (*made)->name() != stored) {
    choice.warn(absl::StrCat("attention was computed by ", stored, " before, and now by ",
                             (*made)->name(), ", which may round differently"));
  }
  choice.plans->SetAttention(key, (*made)->name());
  return made;
}

Made ChooseAsAsked(const AttentionChoice& choice, const std::string& key,
                   const AttentionShape& shape) {
  Made made = std::make_unique<OwnAttention>();
  if (choice.preference == AttentionPreference::kCudnn) {
    if (choice.document_masking) {
      return Refused(absl::InvalidArgumentError(
          "cuDNN's attention does not keep the documents of a window apart, as the run's "
          "train.document_masking wants it"));
    }
    made = MakeCudnn(choice, shape);
    if (!made.ok()) return Refused(made.status());
  }
  const std::string before = choice.plans->SetAttention(key, (*made)->name());
  if (!before.empty() && before != (*made)->name()) {
    choice.warn(absl::StrCat("attention was computed by ", before, " before, and now, as ",
                             "--attention says, by ", (*made)->name(),
                             ", which round differently"));
  }
  return made;
}

}  // namespace

AttentionPreference AttentionPreferenceOf(absl::string_view flag) {
  if (flag == "own") return AttentionPreference::kOwn;
  return flag == "cudnn" ? AttentionPreference::kCudnn : AttentionPreference::kAuto;
}

Made ChooseAttention(const AttentionChoice& choice, const DeviceInfo& device,
                     const AttentionShape& shape, DeviceMemory* memory) {
  const std::string key = KeyOf(device, shape);
  const bool free = choice.preference == AttentionPreference::kAuto;
  if (free && choice.document_masking) return std::make_unique<OwnAttention>();
  if (free && choice.sparing) {
    const std::string before = choice.plans->SetAttention(key, kOwnAttention);
    if (!before.empty() && before != kOwnAttention) {
      choice.warn(absl::StrCat("attention by ", kOwnAttention, ": the workspace of ", before,
                               " does not fit beside the model; steps that it computed before "
                               "were rounded differently"));
    }
    return std::make_unique<OwnAttention>();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<AttentionProvider> made,
                   free ? ChooseFreely(choice, key, shape) : ChooseAsAsked(choice, key, shape));
  RETURN_IF_ERROR(GiveWorkspace(*made, *memory));
  return made;
}

}  // namespace causeway::worker::cuda
