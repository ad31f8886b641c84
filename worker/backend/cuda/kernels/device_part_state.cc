// What of a DevicePart is more than one round's: values held in flight, and checkpoints.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/backend/cuda/kernels/device_part.h"

namespace causeway::worker::cuda {

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
  RETURN_IF_ERROR(CopyAsync(fragment.held, Local(index), fragment.values * kFloatBytes,
                            cudaMemcpyDeviceToDevice, stream_));
  return RecordSnapshot();
}

absl::Status DevicePart::CopyHeld(int index, std::span<float> values) {
  const Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  for (const ShardPiece& piece : fragment.pieces) {
    RETURN_IF_ERROR(CopyAsync(values.data() + (piece.begin - fragment.begin),
                              fragment.held + (piece.offset - fragment.offset),
                              piece.size() * kFloatBytes, cudaMemcpyDeviceToHost, stream_));
  }
  return stream_.Wait("copying local values in flight");
}

absl::Status DevicePart::SetHeld(int index, std::span<const float> values) {
  Part& fragment = part(index);
  if (fragment.values == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(AcquireHeld(fragment));
  for (const ShardPiece& piece : fragment.pieces) {
    RETURN_IF_ERROR(CopyAsync(fragment.held + (piece.offset - fragment.offset),
                              values.data() + (piece.begin - fragment.begin),
                              piece.size() * kFloatBytes, cudaMemcpyHostToDevice, stream_));
  }
  return stream_.Wait("restoring local values in flight");
}

// --- Checkpoints ---------------------------------------------------------------------------------

absl::Status DevicePart::CopyOut(const float* from, const Part& fragment, std::span<float> arena) {
  for (const ShardPiece& piece : fragment.pieces) {
    RETURN_IF_ERROR(CopyAsync(arena.data() + piece.begin, from + piece.offset,
                              piece.size() * kFloatBytes, cudaMemcpyDeviceToHost, stream_));
  }
  return absl::OkStatus();
}

absl::Status DevicePart::CopyPublished(std::span<float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  if (published_ == nullptr) {
    RETURN_IF_ERROR(stream_.Wait("the published copy"));
    for (const ShardPiece& piece : shard_plan_.pieces(shard_.rank)) {
      std::copy_n(published_host_.data() + piece.offset, piece.size(), arena.begin() + piece.begin);
    }
    return absl::OkStatus();
  }
  for (const Part& fragment : parts_) RETURN_IF_ERROR(CopyOut(published_, fragment, arena));
  return stream_.Wait("copying the published copy");
}

absl::Status DevicePart::CopyResiduals(std::span<float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  for (const Part& fragment : parts_) {
    if (fragment.keeps_residual) RETURN_IF_ERROR(CopyOut(residual_, fragment, arena));
  }
  return stream_.Wait("copying what error feedback keeps");
}

absl::Status DevicePart::RestorePublished(std::span<const float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(stream_.Wait("the published copy"));
  for (const ShardPiece& piece : shard_plan_.pieces(shard_.rank)) {
    const int64_t bytes = piece.size() * kFloatBytes;
    if (published_ == nullptr) {
      std::memcpy(published_host_.data() + piece.offset, arena.data() + piece.begin,
                  static_cast<size_t>(bytes));
    } else {
      RETURN_IF_ERROR(CopyAsync(published_ + piece.offset, arena.data() + piece.begin, bytes,
                                cudaMemcpyHostToDevice, stream_));
    }
  }
  return stream_.Wait("restoring the published copy");
}

absl::Status DevicePart::RestoreResidual(std::span<const float> arena) {
  RETURN_IF_ERROR(UseDevice(shard_.device));
  RETURN_IF_ERROR(EnsureResiduals(/*of_all_fragments=*/true, 0));
  for (const ShardPiece& piece : shard_plan_.pieces(shard_.rank)) {
    RETURN_IF_ERROR(CopyAsync(residual_ + piece.offset, arena.data() + piece.begin,
                              piece.size() * kFloatBytes, cudaMemcpyHostToDevice, stream_));
  }
  return stream_.Wait("restoring what error feedback keeps");
}

}  // namespace causeway::worker::cuda
