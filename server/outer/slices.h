// How the work on a fragment is cut: by position alone, so that results do not depend on the number
// of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/codec/codec_layout.h"

namespace causeway::server {

inline constexpr size_t kCacheLine = 64;  // Bytes.

// Values of a fragment.
struct Range {
  size_t begin = 0;
  size_t size = 0;
};

// Calls visit(chunk) for the codec chunks of `range`, until it returns an error.
template <typename Visit>
absl::Status ForEachChunk(Range range, const Visit& visit) {
  for (size_t done = 0; done < range.size; done += kCodecChunk) {
    const Range chunk{range.begin + done, std::min(kCodecChunk, range.size - done)};
    const absl::Status status = visit(chunk);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("in the chunk from value ", chunk.begin));
    }
  }
  return absl::OkStatus();
}

// Runs task(index, slice) on every slice of `slice_size` of `values` values, on `pool` or, without
// one, on this thread. Of several errors the first slice's is returned.
absl::Status ForEachSlice(size_t values, size_t slice_size, ThreadPool* pool,
                          const std::function<absl::Status(size_t, Range)>& task);

// TreeHash of an array that several threads fill, in any order: whoever completes a leaf hashes it
// at once, while it is still in a cache.
class LeafHasher {
 public:
  // `data` outlives the hasher and does not move.
  explicit LeafHasher(std::span<const uint8_t> data);

  // The bytes [begin, begin + size) have their final values. Every byte is reported once; any
  // threads may report at once.
  void Written(size_t begin, size_t size);

  // Once all of it is written: the checksums of the leaves, and the TreeHash that they make.
  const std::vector<uint64_t>& checksums() const { return checksums_; }
  uint64_t Root() const;

 private:
  std::span<const uint8_t> Leaf(size_t index) const;

  std::span<const uint8_t> data_;
  std::vector<std::atomic<size_t>> missing_;  // Bytes of each leaf that are not yet written.
  std::vector<uint64_t> checksums_;
};

}  // namespace causeway::server
