#include "server/outer/leaf_hasher.h"

#include <algorithm>

#include "common/base/checksum.h"

namespace causeway::server {

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
