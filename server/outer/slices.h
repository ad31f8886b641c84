// How the work on a fragment is cut: by position alone, so that results do not depend on the number
// of threads.
#ifndef CAUSEWAY_SERVER_OUTER_SLICES_H_
#define CAUSEWAY_SERVER_OUTER_SLICES_H_

#include <algorithm>
#include <cstddef>
#include <functional>

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

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_OUTER_SLICES_H_
