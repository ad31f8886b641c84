#include "server/outer/slices.h"

#include "common/base/checksum.h"

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

LeafHasher::LeafHasher(std::span<const uint8_t> data)
    : data_(data),
      missing_((data.size() + kTreeLeafBytes - 1) / kTreeLeafBytes),
      checksums_(missing_.size()) {
  for (size_t i = 0; i < missing_.size(); ++i) {
    missing_[i].store(Leaf(i).size(), std::memory_order_relaxed);
  }
}

std::span<const uint8_t> LeafHasher::Leaf(size_t index) const {
  const size_t begin = index * kTreeLeafBytes;
  return data_.subspan(begin, std::min(kTreeLeafBytes, data_.size() - begin));
}

void LeafHasher::Written(size_t begin, size_t size) {
  const size_t end = begin + size;
  while (begin < end) {
    const size_t leaf = begin / kTreeLeafBytes;
    const size_t part = std::min(end, (leaf + 1) * kTreeLeafBytes) - begin;
    // Acquires what the others wrote into the leaf before they reported it.
    if (missing_[leaf].fetch_sub(part, std::memory_order_acq_rel) == part) {
      checksums_[leaf] = Checksum64(Leaf(leaf));
    }
    begin += part;
  }
}

uint64_t LeafHasher::Root() const { return TreeRoot(checksums_); }

}  // namespace causeway::server
