// Takes messages of lanes apart where they lie, and puts them together around data that stays where
// it is (LaneMessage: {control = 1 | chunk = 2}). So the bytes of a chunk are copied once on the
// way in and never on the way out. The wire's bytes are those that the generated classes would
// make.
//
//   MessageKind kind = ParseMessage(bytes, header, chunk);   // no data is copied
//   int64_t i = CheckChunk(chunk, total_bytes);              // it is chunk i of the object
//   uint64_t checksum = ReadChunk(bytes, chunk, leaf);       // its bytes, at their place
//
// common/rpc/channel.h has the border to gRPC's buffers.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/byte_buffer.h"

namespace causeway {

// A serialized message, in however many pieces.
struct MessageBytes {
  std::vector<std::span<const uint8_t>> pieces;
  std::shared_ptr<const void> owner;  // Keeps the pieces; null: they outlive the message.
};

// v1.Chunk apart from its data.
struct ChunkFields {
  int64_t offset = 0;
  uint64_t checksum = 0;
  int32_t unpacked_bytes = 0;  // 0: the data is as it is, else a zstd frame of so many bytes.
  uint64_t transfer = 0;       // Which object, on a lane.
  size_t data_bytes = 0;
  size_t data_position = 0;  // Where the data begins in the parsed message.
};

enum class MessageKind { kNeither, kHeader, kChunk };

// Says which of the two the message holds. Fills `header`, a LaneControl, or `chunk`, just as the
// generated parser would, unknown fields included. INVALID_ARGUMENT if the message is malformed.
absl::StatusOr<MessageKind> ParseMessage(const MessageBytes& bytes,
                                         google::protobuf::MessageLite& header, ChunkFields& chunk);

// Returns the chunk's number in an object of `total_bytes`. OUT_OF_RANGE if it does not begin where
// a chunk of the object does; INVALID_ARGUMENT if it is not as long as that chunk is.
absl::StatusOr<int64_t> CheckChunk(const ChunkFields& chunk, int64_t total_bytes);

// Copies or unpacks the chunk's data into `leaf`, which has just the size that CheckChunk expects,
// and returns the checksum of the leaf. DATA_LOSS if the data's checksum differs, INVALID_ARGUMENT
// if it does not unpack to the size of the leaf; `leaf` is then unspecified.
absl::StatusOr<uint64_t> ReadChunk(const MessageBytes& bytes, const ChunkFields& chunk,
                                   std::span<uint8_t> leaf);

// The bytes around a chunk's data, 1 or more, in a message: head, data, tail.
struct ChunkFrame {
  std::string head;
  std::string tail;  // May be empty.
};
ChunkFrame FrameChunk(const ChunkFields& chunk);

// One object that is being received, whichever end receives it: memory that chunks are read into
// directly, in any order, over as many lanes as bring them.

// Which chunks of an object are there: chunk i is the bytes from i MiB on, one leaf of the tree
// hash, the last one shorter. Both sides keep such a set of what they hold, and tell each other
// as bits (Holding.held_chunks, Want.held_chunks).

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
