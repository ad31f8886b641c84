// Computes the tree hash of a fragment whose bytes lie in several places. Each place hashes the
// leaves that it holds whole, and hands over its bytes of the others.
#ifndef CAUSEWAY_WORKER_SYNC_LEAF_ASSEMBLY_H_
#define CAUSEWAY_WORKER_SYNC_LEAF_ASSEMBLY_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace causeway::worker {

// Says what a place hashes and what it hands over, for its range of a fragment's bytes.
struct LeafRanges {
  // `begin` .. `end` of `total` bytes.
  LeafRanges(int64_t begin, int64_t end, int64_t total);

  int64_t first_leaf = 0;  // The first leaf that lies in the range as a whole,
  int64_t leaves = 0;      // and the number of these.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<Range> shared;  // The rest: parts of leaves before and behind. At most two.
};

// Takes what places hash and hand over.
class LeafSink {
 public:
  virtual ~LeafSink() = default;
  virtual void SetLeaf(int64_t leaf, uint64_t checksum) = 0;
  // Bytes of shared leaves, from `offset` on.
  virtual void AddShared(int64_t offset, std::span<const uint8_t> bytes) = 0;
};

class LeafAssembly final : public LeafSink {
 public:
  explicit LeafAssembly(int64_t bytes);

  void SetLeaf(int64_t leaf, uint64_t checksum) override;
  void AddShared(int64_t offset, std::span<const uint8_t> bytes) override;
  // Returns the TreeHash of all bytes. Every leaf must have been set or added whole.
  uint64_t Root();

 private:
  const int64_t bytes_;
  std::vector<uint64_t> checksums_;
  std::map<int64_t, std::vector<uint8_t>> shared_;  // Whole leaves, by number.
};

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_SYNC_LEAF_ASSEMBLY_H_
