#include "worker/sync/replica.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/checksum.h"

namespace causeway::worker {
namespace {

constexpr auto kLeaf = static_cast<int64_t>(kTreeLeafBytes);

// However the bytes are divided, their tree hash comes out, and every byte is accounted for once.
TEST(LeafAssemblyTest, DividedBytesHashAsWhole) {
  for (const int64_t total : {int64_t{256}, kLeaf, kLeaf + 256, 3 * kLeaf - 512}) {
    std::vector<uint8_t> bytes(static_cast<size_t>(total));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 4096);
    const auto part = [&](int64_t begin, int64_t end) {
      return std::span<const uint8_t>(bytes).subspan(static_cast<size_t>(begin),
                                                     static_cast<size_t>(end - begin));
    };
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{},
                                             {total / 2},
                                             {256, 512, total - 256},
                                             {kLeaf},
                                             {kLeaf - 256},
                                             {kLeaf, 2 * kLeaf},
                                             {kLeaf + 256, kLeaf + 512}}) {
      std::vector<int64_t> bounds = {0};
      for (const int64_t cut : cuts) {
        if (cut > bounds.back() && cut < total) bounds.push_back(cut);
      }
      bounds.push_back(total);
      LeafAssembly assembly(total);
      int64_t covered = 0;
      for (size_t i = 0; i + 1 < bounds.size(); ++i) {
        const LeafRanges ranges(bounds[i], bounds[i + 1], total);
        for (int64_t leaf = ranges.first_leaf; leaf < ranges.first_leaf + ranges.leaves; ++leaf) {
          const int64_t end = std::min((leaf + 1) * kLeaf, total);
          assembly.SetLeaf(leaf, Checksum64(part(leaf * kLeaf, end)));
          covered += end - leaf * kLeaf;
        }
        for (const LeafRanges::Range& range : ranges.shared) {
          assembly.AddShared(range.begin, part(range.begin, range.end));
          covered += range.end - range.begin;
        }
      }
      EXPECT_EQ(covered, total);
      EXPECT_EQ(assembly.Root(), TreeHash(std::span<const uint8_t>(bytes)));
    }
  }
}

TEST(LeafAssemblyTest, WhoHasAllBytesSharesNone) {
  const LeafRanges ranges(0, 3 * kLeaf - 256, 3 * kLeaf - 256);
  EXPECT_EQ(ranges.first_leaf, 0);
  EXPECT_EQ(ranges.leaves, 3);
  EXPECT_TRUE(ranges.shared.empty());
}

}  // namespace
}  // namespace causeway::worker
