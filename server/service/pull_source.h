// An object on its way down, once for all who pull it: its chunks with their checksums and, where
// the run packs what it sends down, their packed form.
#ifndef CAUSEWAY_SERVER_SERVICE_PULL_SOURCE_H_
#define CAUSEWAY_SERVER_SERVICE_PULL_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/transfer/chunk_message.h"
#include "server/core/pull_object.h"
#include "common/base/work_queue.h"

namespace causeway::server {

// A chunk that lies where it is until `owner` is released.
struct OutgoingChunk {
  ChunkFields fields;  // Apart from data_position.
  std::span<const uint8_t> data;
  std::shared_ptr<const void> owner;
};

// Thread-safe.
class PullSource {
 public:
  // `pack`: chunks cross packed where that makes them smaller. Packed chunks are kept as long as
  // `cache`, which outlives the source, has room for them.
  PullSource(std::shared_ptr<const PullObject> object, bool pack, ByteBudget& cache);
  ~PullSource();

  const PullObject& object() const { return *object_; }
  // True if Chunk may take long, as packing does.
  bool packs() const { return pack_; }
  // Chunk i: what it takes to compute is computed once.
  OutgoingChunk Chunk(int64_t chunk);

 private:
  struct Packed {
    std::string bytes;  // Empty: the chunk does not get smaller.
    uint64_t checksum = 0;
  };
  std::span<const uint8_t> Plain(int64_t chunk) const;
  std::shared_ptr<const Packed> Pack(int64_t chunk);

  const std::shared_ptr<const PullObject> object_;
  const bool pack_;
  ByteBudget& cache_;
  std::vector<std::atomic<uint64_t>> checksums_;  // 0: not known yet.
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<const Packed>> packed_ ABSL_GUARDED_BY(mutex_);
  int64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PULL_SOURCE_H_
