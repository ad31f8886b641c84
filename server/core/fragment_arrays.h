// The large arrays of a fragment at the coordinator: in memory while a round needs them, at rest in
// a scratch file between its rounds. So memory follows what is in flight, not the model.
//
// A scratch file has no name and is gone with the process: no successor reads it, and nothing in it
// is synced. What lasts is in the store. Its pages stay in the system's cache as long as there is
// room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/byte_buffer.h"
#include "common/base/thread_pool.h"

namespace causeway::server {

// Thread-safe for ranges that do not overlap.
class ScratchFile {
 public:
  // A file of `bytes` in `folder`, whose space is set aside. RESOURCE_EXHAUSTED if the disk has not
  // as much.
  static absl::StatusOr<std::unique_ptr<ScratchFile>> Create(const std::string& folder,
                                                             uint64_t bytes);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  absl::Status Write(uint64_t offset, std::span<const uint8_t> data);
  absl::Status Read(uint64_t offset, std::span<uint8_t> data) const;
  // They are going to be read: the system may fetch them meanwhile.
  void Expect(uint64_t offset, uint64_t bytes) const;

 private:
  explicit ScratchFile(int descriptor) : descriptor_(descriptor) {}

  const int descriptor_;
};

// Not thread-safe; const methods may run at once. A null `pool` is the calling thread; else nobody
// else may use it meanwhile.
class FragmentArrays {
 public:
  struct Set {
    FloatBuffer theta;
    FloatBuffer published;
    std::vector<FloatBuffer> optimizer;  // In the order of OuterOptimizer::state_names().
  };

  // Bytes that so many values with so many states of the optimizer take at rest.
  static uint64_t BytesAtRest(size_t values, size_t states) {
    return (2 + states) * values * sizeof(float);
  }

  // `scratch` outlives the object; from `offset` on it has room for these arrays. Null: they never
  // rest.
  FragmentArrays(size_t values, size_t states, ScratchFile* scratch, uint64_t offset)
      : values_(values), states_(states), scratch_(scratch), offset_(offset) {}

  bool at_rest() const { return at_rest_; }
  // Not at rest.
  Set& set() { return set_; }
  const Set& set() const { return set_; }

  // Writes them down and frees their memory. After an error they are in memory as before. Without a
  // scratch file: nothing.
  absl::Status Rest(ThreadPool* pool);
  // Brings them back; nothing if they are there. DATA_LOSS: they are not what was written.
  absl::Status Load(ThreadPool* pool);
  // Returns a copy, at rest or not. Load's errors.
  absl::StatusOr<Set> Copy() const;
  // Of the published values alone, as many as there are.
  absl::Status CopyPublished(std::span<float> values) const;
  // At rest: Load is near.
  void Expect() const;

 private:
  // The place of array `index`: theta, published, the optimizer's.
  uint64_t OffsetOf(size_t index) const { return offset_ + index * values_ * sizeof(float); }
  absl::Status ReadArray(size_t index, ThreadPool* pool, std::span<float> values) const;
  absl::StatusOr<Set> ReadAll(ThreadPool* pool) const;

  const size_t values_;
  const size_t states_;
  ScratchFile* const scratch_;
  const uint64_t offset_;
  Set set_;
  bool at_rest_ = false;
  std::vector<std::vector<uint64_t>> checksums_;  // At rest, of each array's pieces.
};

}  // namespace causeway::server
