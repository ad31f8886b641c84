// One object that is being received, whichever end receives it: memory that chunks are read into
// directly, in any order, over as many lanes as bring them.
#ifndef CAUSEWAY_COMMON_TRANSFER_CHUNK_ASSEMBLY_H_
#define CAUSEWAY_COMMON_TRANSFER_CHUNK_ASSEMBLY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/byte_buffer.h"
#include "common/transfer/chunk_set.h"

namespace causeway {

// Thread-safe. A chunk's memory belongs to whoever PlaceOf gave it to, until Placed.
class ChunkAssembly {
 public:
  // Looks at a chunk whose checksum is right, while it is in a cache. Called once per chunk; calls
  // for several chunks may overlap. Never blocks.
  using Look = std::function<void(int64_t chunk, std::span<const uint8_t> bytes)>;

  // An object of 0 .. kMaxObjectBytes, of which nothing is held.
  explicit ChunkAssembly(int64_t object_bytes, Look look = nullptr);

  // Returns the chunk's place: fill it, then call Placed. Empty: the chunk is held. Nothing:
  // somebody else fills it, who may fail.
  std::optional<std::span<uint8_t>> PlaceOf(int64_t chunk);
  // Ends what PlaceOf began. With a checksum, the chunk is held; with an error, it is as if it had
  // not come. True for the one call that makes the object whole.
  bool Placed(int64_t chunk, const absl::StatusOr<uint64_t>& checksum);

  int64_t object_bytes() const { return object_bytes_; }
  ChunkSet held() const;
  // Once it is whole: the tree hash of what came, and the bytes, which the caller may take: nobody
  // looks at them any more.
  uint64_t tree_hash() const;
  const std::shared_ptr<ByteBuffer>& bytes() const { return bytes_; }

 private:
  std::span<uint8_t> Place(int64_t chunk) const;

  const int64_t object_bytes_;
  const Look look_;
  const std::shared_ptr<ByteBuffer> bytes_;
  mutable absl::Mutex mutex_;
  ChunkSet held_ ABSL_GUARDED_BY(mutex_);
  ChunkSet arriving_ ABSL_GUARDED_BY(mutex_);             // PlaceOf was called, Placed not yet.
  std::vector<uint64_t> leaves_ ABSL_GUARDED_BY(mutex_);  // Checksums of the chunks that are held.
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TRANSFER_CHUNK_ASSEMBLY_H_
