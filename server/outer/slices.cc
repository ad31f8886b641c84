#include "server/outer/slices.h"

#include <cstdint>
#include <vector>

namespace causeway::server {

absl::Status ForEachSlice(size_t values, size_t slice_size, ThreadPool* pool,
                          const std::function<absl::Status(size_t, Range)>& task) {
  const size_t slices = (values + slice_size - 1) / slice_size;
  std::vector<absl::Status> statuses(slices);
  const auto run = [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const size_t begin = i * slice_size;
    statuses[i] = task(i, Range{begin, std::min(slice_size, values - begin)});
  };
  if (pool != nullptr) {
    pool->ParallelFor(static_cast<int64_t>(slices), run);
  } else {
    for (size_t i = 0; i < slices; ++i) run(static_cast<int64_t>(i));
  }
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace causeway::server
