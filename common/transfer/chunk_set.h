// Which chunks of an object are there: chunk i is the bytes from i MiB on, one leaf of the tree
// hash, the last one shorter. Both sides keep such a set of what they hold, and tell each other
// as bits (Holding.held_chunks, Want.held_chunks).
#ifndef CAUSEWAY_COMMON_TRANSFER_CHUNK_SET_H_
#define CAUSEWAY_COMMON_TRANSFER_CHUNK_SET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway {

// Not thread-safe.
class ChunkSet {
 public:
  // For an object without bytes.
  ChunkSet() = default;
  // An empty set, for an object of 0 .. kMaxObjectBytes.
  explicit ChunkSet(int64_t object_bytes);
  // Reads a peer's set for an object of that size. INVALID_ARGUMENT if `bits` has chunks beyond the
  // object's end.
  static absl::StatusOr<ChunkSet> FromWire(int64_t object_bytes, absl::string_view bits);
  // Bit i says that chunk i is held; bit 0 is the lowest of the first byte. No trailing zero bytes.
  std::string ToWire() const;

  int64_t chunks() const { return chunks_; }
  int64_t object_bytes() const { return object_bytes_; }
  int64_t held_chunks() const { return held_chunks_; }
  int64_t held_bytes() const { return held_bytes_; }
  bool complete() const { return held_chunks_ == chunks_; }

  // Chunks are 0 .. chunks() - 1.
  static int64_t Offset(int64_t chunk);
  int64_t Size(int64_t chunk) const;
  bool Holds(int64_t chunk) const;
  // False if it was held already.
  bool Add(int64_t chunk);
  // False if it was not held.
  bool Remove(int64_t chunk);
  // The first chunk from `chunk` on that is not held; chunks() if there is none.
  int64_t FirstMissing(int64_t chunk = 0) const;

 private:
  int64_t object_bytes_ = 0;
  int64_t chunks_ = 0;
  int64_t held_chunks_ = 0;
  int64_t held_bytes_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TRANSFER_CHUNK_SET_H_
