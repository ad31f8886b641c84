#include "worker/sync/leaf_assembly.h"

#include <algorithm>

#include "common/base/checksum.h"

namespace causeway::worker {
namespace {

constexpr auto kLeaf = static_cast<int64_t>(kTreeLeafBytes);

}  // namespace

LeafRanges::LeafRanges(int64_t begin, int64_t end, int64_t total) {
  first_leaf = (begin + kLeaf - 1) / kLeaf;
  const int64_t behind = end == total ? (end + kLeaf - 1) / kLeaf : end / kLeaf;
  leaves = std::max<int64_t>(behind - first_leaf, 0);
  const int64_t whole_begin = std::min(first_leaf * kLeaf, end);
  const int64_t whole_end = leaves == 0 ? whole_begin : std::min(behind * kLeaf, end);
  if (begin < whole_begin) shared.push_back({begin, whole_begin});
  if (whole_end < end) shared.push_back({whole_end, end});
}

LeafAssembly::LeafAssembly(int64_t bytes)
    : bytes_(bytes), checksums_(static_cast<size_t>((bytes + kLeaf - 1) / kLeaf)) {}

void LeafAssembly::SetLeaf(int64_t leaf, uint64_t checksum) {
  checksums_[static_cast<size_t>(leaf)] = checksum;
}

void LeafAssembly::AddShared(int64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const int64_t leaf = offset / kLeaf;
    std::vector<uint8_t>& whole = shared_[leaf];
    whole.resize(static_cast<size_t>(std::min(kLeaf, bytes_ - leaf * kLeaf)));
    const auto place = static_cast<size_t>(offset % kLeaf);
    const size_t size = std::min(bytes.size(), whole.size() - place);
    std::copy_n(bytes.begin(), size, whole.begin() + static_cast<ptrdiff_t>(place));
    offset += static_cast<int64_t>(size);
    bytes = bytes.subspan(size);
  }
}

uint64_t LeafAssembly::Root() {
  for (const auto& [leaf, bytes] : shared_) SetLeaf(leaf, Checksum64(bytes));
  return TreeRoot(checksums_);
}

}  // namespace causeway::worker
