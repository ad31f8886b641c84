#include "common/transfer/chunk_assembly.h"

#include <algorithm>
#include <utility>

#include "common/base/checksum.h"
#include "common/transfer/wire.h"

namespace causeway {

ChunkAssembly::ChunkAssembly(int64_t object_bytes, Look look)
    : object_bytes_(object_bytes),
      look_(std::move(look)),
      bytes_(std::make_shared<ByteBuffer>(static_cast<size_t>(object_bytes))),
      held_(object_bytes),
      arriving_(object_bytes),
      leaves_(static_cast<size_t>(held_.chunks())) {}

std::span<uint8_t> ChunkAssembly::Place(int64_t chunk) const {
  const auto offset = static_cast<size_t>(ChunkSet::Offset(chunk));
  return std::span(*bytes_).subspan(offset, std::min(kChunkBytes, bytes_->size() - offset));
}

std::optional<std::span<uint8_t>> ChunkAssembly::PlaceOf(int64_t chunk) {
  absl::MutexLock lock(&mutex_);
  if (held_.Holds(chunk)) return std::span<uint8_t>();
  if (!arriving_.Add(chunk)) return std::nullopt;
  return Place(chunk);
}

bool ChunkAssembly::Placed(int64_t chunk, const absl::StatusOr<uint64_t>& checksum) {
  if (checksum.ok() && look_ != nullptr) look_(chunk, Place(chunk));
  absl::MutexLock lock(&mutex_);
  arriving_.Remove(chunk);
  if (!checksum.ok()) return false;
  held_.Add(chunk);
  leaves_[static_cast<size_t>(chunk)] = *checksum;
  return held_.complete();
}

ChunkSet ChunkAssembly::held() const {
  absl::MutexLock lock(&mutex_);
  return held_;
}

uint64_t ChunkAssembly::tree_hash() const {
  absl::MutexLock lock(&mutex_);
  return TreeRoot(leaves_);
}

}  // namespace causeway
