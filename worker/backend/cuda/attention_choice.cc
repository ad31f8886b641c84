#include "worker/backend/cuda/attention_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/backend/cuda/kernels/random_fill.h"

namespace causeway::worker::cuda {
namespace {

constexpr char kAttentionArena[] = "attention's workspace";
constexpr char kLowerByFlag[] = "--attention=own";
constexpr int kTimedRuns = 3;

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

// Where nothing was chosen before.
Made Faster(const AttentionChoice& choice, const AttentionShape& shape, cudaStream_t stream) {
  auto own = std::make_unique<OwnAttention>();
  Made cudnn = MakeCudnn(choice, shape);
  const auto without = [&](const absl::Status& why) {
    choice.inform(absl::StrCat("attention by ", kOwnAttention, ": ", why.message()));
    return std::move(own);
  };
  if (absl::IsUnavailable(cudnn.status())) return cudnn.status();
  if (!cudnn.ok()) return without(cudnn.status());
  const absl::StatusOr<float> own_time = choice.time(*own, shape, stream);
  RETURN_IF_ERROR(own_time.status());
  const absl::StatusOr<float> cudnn_time = choice.time(**cudnn, shape, stream);
  // An attention that fails, or has no room, is passed over.
  if (absl::IsUnavailable(cudnn_time.status())) return cudnn_time.status();
  if (!cudnn_time.ok()) return without(cudnn_time.status());
  const bool faster = *cudnn_time < *own_time;
  choice.inform(
      absl::StrFormat("attention by %s: %.3f ms per layer, %s takes %.3f ms",
                      faster ? (*cudnn)->name() : own->name(), std::min(*cudnn_time, *own_time),
                      faster ? own->name() : (*cudnn)->name(), std::max(*cudnn_time, *own_time)));
  if (!faster) return own;
  return cudnn;
}

Made ChooseFreely(const AttentionChoice& choice, const std::string& key,
                  const AttentionShape& shape, cudaStream_t stream) {
  const std::string stored = choice.plans->FindAttention(key);
  if (stored == kOwnAttention) return std::make_unique<OwnAttention>();
  if (stored.empty()) {
    Made faster = Faster(choice, shape, stream);
    RETURN_IF_ERROR(faster.status());
    // Another GPU may have measured otherwise before.
    const std::string kept = choice.plans->KeepAttention(key, (*faster)->name());
    if (kept == (*faster)->name()) return faster;
    if (kept == kOwnAttention) return std::make_unique<OwnAttention>();
    return MakeCudnn(choice, shape);
  }
  Made cudnn = MakeCudnn(choice, shape);
  if (!cudnn.ok()) {
    choice.warn(absl::StrCat("attention was computed by ", stored, " before, and now by ",
                             kOwnAttention,
                             ", which round differently: ", cudnn.status().message()));
    cudnn = std::make_unique<OwnAttention>();
  } else if ((*cudnn)->name() != stored) {
    choice.warn(absl::StrCat("attention was computed by ", stored, " before, and now by ",
                             (*cudnn)->name(), ", which may round differently"));
  }
  if (cudnn.ok()) choice.plans->SetAttention(key, (*cudnn)->name());
  return cudnn;
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
                     const AttentionShape& shape, DeviceMemory* memory, cudaStream_t stream) {
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
  ASSIGN_OR_RETURN(
      std::unique_ptr<AttentionProvider> made,
      free ? ChooseFreely(choice, key, shape, stream) : ChooseAsAsked(choice, key, shape));
  RETURN_IF_ERROR(GiveWorkspace(*made, *memory));
  return made;
}

absl::StatusOr<float> TimeAttention(AttentionProvider& provider, const AttentionShape& shape,
                                    cudaStream_t stream) {
  DeviceMemory memory;
  const int64_t tokens = int64_t{shape.sequences} * shape.length;
  const int64_t out_size = tokens * shape.heads * shape.head_dim;
  const int64_t qkv_size = tokens * (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const auto bf16 = [&](int64_t size) {
    return memory.Allocate<__nv_bfloat16>("timing attention", size, kLowerByFlag);
  };
  ASSIGN_OR_RETURN(__nv_bfloat16* const qkv, bf16(qkv_size));
  ASSIGN_OR_RETURN(__nv_bfloat16* const dqkv, bf16(qkv_size));
  ASSIGN_OR_RETURN(__nv_bfloat16* const out, bf16(out_size));
  ASSIGN_OR_RETURN(__nv_bfloat16* const dout, bf16(out_size));
  ASSIGN_OR_RETURN(
      float* const rows,
      memory.Allocate<float>("timing attention", 2 * tokens * shape.heads, kLowerByFlag));
  RETURN_IF_ERROR(GiveWorkspace(provider, memory));
  FillRandom(qkv_size, /*seed=*/1, /*scale=*/1.0F, qkv, stream);
  FillRandom(out_size, /*seed=*/2, /*scale=*/1.0F, dout, stream);
  ASSIGN_OR_RETURN(const Event begin, Event::Create(/*timing=*/true));
  ASSIGN_OR_RETURN(const Event end, Event::Create(/*timing=*/true));
  float best = std::numeric_limits<float>::infinity();
  for (int run = 0; run <= kTimedRuns; ++run) {
    RETURN_IF_ERROR(begin.Record(stream));
    RETURN_IF_ERROR(provider.Forward(shape, qkv, nullptr, out, rows, stream));
    RETURN_IF_ERROR(provider.Backward(shape, qkv, nullptr, out, rows, dout,
                                      rows + tokens * shape.heads, dqkv, stream));
    RETURN_IF_ERROR(CheckLaunches("timing attention"));
    RETURN_IF_ERROR(end.Record(stream));
    RETURN_IF_ERROR(end.Wait("timing attention"));
    float milliseconds = 0;
    RETURN_IF_ERROR(
        CheckCuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "timing attention"));
    if (run > 0) best = std::min(best, milliseconds);  // The first loads code.
  }
  return best;
}

}  // namespace causeway::worker::cuda
