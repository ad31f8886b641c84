// What of a DevicePart is more than one round's: values held in flight, and checkpoints.
#include <utility>

#include "common/base/status_macros.h"
#include "worker/backend/cuda/kernels/device_part.h"

namespace causeway::worker::cuda {
namespace {

// Enqueue copies of pieces between memory of the rank's own, as the shard from value `own_begin`
// on, and the host's memory, as the arena from `arena_begin` on.
absl::Status CopyOut(const Stream& stream, std::span<const ShardPiece> pieces, const float* own,
                     int64_t own_begin, float* arena, int64_t arena_begin) {
  for (const ShardPiece& piece : pieces) {
    RETURN_IF_ERROR(CopyAsync(arena + (piece.begin - arena_begin), own + (piece.offset - own_begin),
                              piece.size(), stream.get(), "copying from a GPU"));
  }
  return absl::OkStatus();
}

absl::Status CopyIn(const Stream& stream, std::span<const ShardPiece> pieces, const float* arena,
                    int64_t arena_begin, float* own, int64_t own_begin) {
  for (const ShardPiece& piece : pieces) {
    RETURN_IF_ERROR(CopyAsync(own + (piece.offset - own_begin), arena + (piece.begin - arena_begin),
                              piece.size(), stream.get(), "copying to a GPU"));
  }
  return absl::OkStatus();
}

}  // namespace

// --- What is trained in flight -------------------------------------------------------------------

absl::Status DevicePart::AcquireHeld(Part& fragment) {
  if (fragment.held != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(fragment.held, slots_->AcquireHeld());
  return absl::OkStatus();
}

void DevicePart::ReleaseHeld(Part& fragment) {
  if (fragment.held != nullptr) slots_->ReleaseHeld(std::exchange(fragment.held, nullptr));
}

absl::Status DevicePart::Hold(int index) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(AcquireHeld(fragment));
  RETURN_IF_ERROR(FollowTraining());
  RETURN_IF_ERROR(CopyAsync<float>(fragment.held, Local(index), fragment.values, stream_.get(),
                                   "holding local values"));
  return RecordSnapshot();
}

absl::Status DevicePart::CopyHeld(int index, std::span<float> values) {
  const Part& fragment = part(index);
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(CopyOut(stream_, fragment.pieces, fragment.held, fragment.offset, values.data(),
                          fragment.begin));
  return stream_.Wait("copying local values in flight");
}

absl::Status DevicePart::SetHeld(int index, std::span<const float> values) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(AcquireHeld(fragment));
  RETURN_IF_ERROR(CopyIn(stream_, fragment.pieces, values.data(), fragment.begin, fragment.held,
                         fragment.offset));
  return stream_.Wait("restoring local values in flight");
}

// --- Checkpoints ---------------------------------------------------------------------------------

absl::Status DevicePart::SetPublished(int index, std::span<const uint8_t> values) {
  const Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(stream_.Wait("the published copy"));
  RETURN_IF_ERROR(CopyIn(stream_, fragment.pieces, FloatsOf(values).data(), fragment.begin,
                         PublishedCopy(), 0));
  ASSIGN_OR_RETURN(float* const published, LoadPublished(fragment));
  RETURN_IF_ERROR(BeginHash(index, published, /*answer=*/nullptr));
  return stream_.Wait("copying the published state");  // `values` may go.
}

absl::Status DevicePart::CopyPublished(std::span<float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(stream_.Wait("the published copy"));
  RETURN_IF_ERROR(
      CopyOut(stream_, shard_plan_.pieces(shard_.rank), PublishedCopy(), 0, arena.data(), 0));
  return stream_.Wait("copying the published copy");
}

absl::Status DevicePart::CopyResiduals(std::span<float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  for (const Part& fragment : parts_) {
    if (!fragment.keeps_residual) continue;
    RETURN_IF_ERROR(CopyOut(stream_, fragment.pieces, residual_, 0, arena.data(), 0));
  }
  return stream_.Wait("copying what error feedback keeps");
}

absl::Status DevicePart::RestorePublished(std::span<const float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(stream_.Wait("the published copy"));
  RETURN_IF_ERROR(
      CopyIn(stream_, shard_plan_.pieces(shard_.rank), arena.data(), 0, PublishedCopy(), 0));
  return stream_.Wait("restoring the published copy");
}

absl::Status DevicePart::RestoreResidual(std::span<const float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(EnsureResiduals(/*of_all_fragments=*/true, 0));
  RETURN_IF_ERROR(CopyIn(stream_, shard_plan_.pieces(shard_.rank), arena.data(), 0, residual_, 0));
  return stream_.Wait("restoring what error feedback keeps");
}

}  // namespace causeway::worker::cuda
