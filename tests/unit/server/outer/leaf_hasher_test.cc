#include "server/outer/slices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/base/thread_pool.h"
#include "gtest/gtest.h"

namespace causeway::server {
namespace {

TEST(LeafHasher, IsTreeHashHoweverThePiecesComeAndWhoeverWritesThem) {
  for (const size_t size : {size_t{0}, size_t{1}, kTreeLeafBytes - 1, kTreeLeafBytes,
                            kTreeLeafBytes + 1, 3 * kTreeLeafBytes + 77}) {
    std::vector<uint8_t> expected(size);
    for (size_t i = 0; i < size; ++i) expected[i] = static_cast<uint8_t>(RandomBits(1, size, i));
    // Pieces that straddle leaves, one that covers several, and many in one leaf.
    for (const size_t piece : {size_t{139264}, size_t{1000003}, 4 * kTreeLeafBytes}) {
      std::vector<uint8_t> data(size);
      LeafHasher hasher(data);
      const size_t pieces = (size + piece - 1) / piece;
      ThreadPool pool(3);
      pool.ParallelFor(static_cast<int64_t>(pieces), [&](int64_t task) {
        const size_t begin = (pieces - 1 - static_cast<size_t>(task)) * piece;  // Backwards.
        const size_t end = std::min(size, begin + piece);
        std::copy(expected.begin() + static_cast<ptrdiff_t>(begin),
                  expected.begin() + static_cast<ptrdiff_t>(end),
                  data.begin() + static_cast<ptrdiff_t>(begin));
        hasher.Written(begin, end - begin);
      });
      EXPECT_EQ(hasher.Root(), TreeHash(std::span<const uint8_t>(expected)))
          << size << " bytes in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace causeway::server
