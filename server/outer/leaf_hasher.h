// TreeHash of an array that several threads fill, in any order: whoever completes a leaf hashes it
// at once, while it is still in a cache.
#ifndef CAUSEWAY_SERVER_OUTER_LEAF_HASHER_H_
#define CAUSEWAY_SERVER_OUTER_LEAF_HASHER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace causeway::server {

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

#endif  // CAUSEWAY_SERVER_OUTER_LEAF_HASHER_H_
