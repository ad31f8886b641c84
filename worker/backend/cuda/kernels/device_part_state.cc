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

absl::Status DevicePart::AcquireHeld(Part& fragment) {
  if (fragment.held != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(fragment.held, slots_->AcquireHeld());
  return absl::OkStatus();
}

void DevicePart::ReleaseHeld(Part& fragment) {
  if (fragment.held != nullptr) slots_->ReleaseHeld(std::exchange(fragment.held, nullptr));
}

absl::Status DevicePart::DoToFragment(const PartCall& call) {
  const int index = call.fragment;
  Part& fragment = part(index);
  switch (call.method) {
    case kPartFoldLate:
      return FoldLate(index, call.in);
    case kPartStageAnswer:
      return StageAnswer(index, call.in);
    case kPartMerge:
      return Merge(index, call.in, call.alpha);
    case kPartMix:
      return Mix(index, call.alpha);
    case kPartSetPublished: {
      RETURN_IF_ERROR(stream_.Wait("the published copy"));
      RETURN_IF_ERROR(CopyIn(stream_, fragment.pieces, FloatsOf(call.in).data(), fragment.begin,
                             PublishedCopy(), 0));
      ASSIGN_OR_RETURN(float* const published, LoadPublished(fragment));
      RETURN_IF_ERROR(BeginHash(index, published, /*answer=*/nullptr));
      return stream_.Wait("copying the published state");  // What came in may go.
    }
    case kPartHold:
      RETURN_IF_ERROR(AcquireHeld(fragment));
      RETURN_IF_ERROR(FollowTraining());
      RETURN_IF_ERROR(CopyAsync<float>(fragment.held, Local(index), fragment.values, stream_.get(),
                                       "holding local values"));
      return RecordSnapshot();
    case kPartCopyHeld:
      RETURN_IF_ERROR(CopyOut(stream_, fragment.pieces, fragment.held, fragment.offset,
                              FloatsOf(call.out).data(), fragment.begin));
      return stream_.Wait("copying local values in flight");
    case kPartSetHeld:
      RETURN_IF_ERROR(AcquireHeld(fragment));
      RETURN_IF_ERROR(CopyIn(stream_, fragment.pieces, FloatsOf(call.in).data(), fragment.begin,
                             fragment.held, fragment.offset));
      return stream_.Wait("restoring local values in flight");
    default:
      return absl::OkStatus();
  }
}

absl::Status DevicePart::CopyArena(const PartCall& call) {
  const std::span<const ShardPiece> pieces = shard_plan_.pieces(shard_.rank);
  const float* const in = FloatsOf(call.in).data();
  float* const out = FloatsOf(call.out).data();
  switch (call.method) {
    case kPartCopyPublished:
      RETURN_IF_ERROR(stream_.Wait("the published copy"));
      RETURN_IF_ERROR(CopyOut(stream_, pieces, PublishedCopy(), 0, out, 0));
      return stream_.Wait("copying the published copy");
    case kPartCopyResiduals:
      for (const Part& fragment : parts_) {
        if (!fragment.keeps_residual) continue;
        RETURN_IF_ERROR(CopyOut(stream_, fragment.pieces, residual_, 0, out, 0));
      }
      return stream_.Wait("copying what error feedback keeps");
    case kPartRestorePublished:
      RETURN_IF_ERROR(stream_.Wait("the published copy"));
      RETURN_IF_ERROR(CopyIn(stream_, pieces, in, 0, PublishedCopy(), 0));
      return stream_.Wait("restoring the published copy");
    default:
      RETURN_IF_ERROR(EnsureResiduals(/*of_all_fragments=*/true, 0));
      RETURN_IF_ERROR(CopyIn(stream_, pieces, in, 0, residual_, 0));
      return stream_.Wait("restoring what error feedback keeps");
  }
}

}  // namespace causeway::worker::cuda
