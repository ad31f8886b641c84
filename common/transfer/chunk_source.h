// An object to be sent, once for all who receive it: its chunks with their checksums and, where the
// run packs what it sends, their packed form.
#ifndef CAUSEWAY_COMMON_TRANSFER_CHUNK_SOURCE_H_
#define CAUSEWAY_COMMON_TRANSFER_CHUNK_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/work_queue.h"
#include "common/transfer/chunk_message.h"

namespace causeway {

// A chunk that lies where it is until `owner` is released.
struct OutgoingChunk {
  ChunkFields fields;  // Apart from data_position.
  std::span<const uint8_t> data;
  std::shared_ptr<const void> owner;
};

// Thread-safe.
class ChunkSource {
 public:
  struct Options {
    std::span<const uint8_t> bytes;  // They do not change before `owner` is released.
    // The checksums of the chunks, where they are known; or empty: they are taken on the way.
    std::span<const uint64_t> leaves;
    std::shared_ptr<const void> owner;
    bool pack = false;  // Chunks cross packed where that makes them smaller.
    // Packed chunks are kept as long as it has room; it outlives the source. Null: they are not.
    ByteBudget* cache = nullptr;
  };
  explicit ChunkSource(Options options);
  ~ChunkSource();
  ChunkSource(const ChunkSource&) = delete;
  ChunkSource& operator=(const ChunkSource&) = delete;

  int64_t object_bytes() const { return static_cast<int64_t>(options_.bytes.size()); }
  // True if Chunk may take long, as packing does.
  bool packs() const { return options_.pack; }
  // Returns the chunk. Its checksum is computed once; so is its packed form, if there is room to
  // keep it.
  OutgoingChunk Chunk(int64_t chunk);

 private:
  struct Packed {
    std::string bytes;  // Empty: the chunk does not get smaller.
    uint64_t checksum = 0;
  };
  std::span<const uint8_t> Plain(int64_t chunk) const;
  std::shared_ptr<const Packed> Pack(int64_t chunk);

  const Options options_;
  std::vector<std::atomic<uint64_t>> checksums_;  // 0: not known yet.
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<const Packed>> packed_ ABSL_GUARDED_BY(mutex_);
  int64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_TRANSFER_CHUNK_SOURCE_H_
