#include "common/base/checksum.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace causeway {
namespace {

std::vector<uint8_t> Pattern(size_t size) {
  std::vector<uint8_t> data(size);
  for (size_t i = 0; i < size; ++i) data[i] = static_cast<uint8_t>(i * 7 + (i >> 8));
  return data;
}

// The definition, written once more: XXH3 of the little-endian sequence of the leaves' XXH3.
uint64_t TreeHashByDefinition(const std::vector<uint8_t>& data) {
  std::vector<uint8_t> sequence;
  for (size_t begin = 0; begin < data.size(); begin += size_t{1} << 20) {
    const uint64_t leaf =
        XXH3_64bits(data.data() + begin, std::min(data.size() - begin, size_t{1} << 20));
    for (int byte = 0; byte < 8; ++byte) {
      sequence.push_back(static_cast<uint8_t>(leaf >> (8 * byte)));
    }
  }
  return XXH3_64bits(sequence.data(), sequence.size());
}

const std::vector<size_t> kSizes = {0,
                                    1,
                                    3,
                                    4096,
                                    kTreeLeafBytes - 1,
                                    kTreeLeafBytes,
                                    kTreeLeafBytes + 1,
                                    2 * kTreeLeafBytes - 1,
                                    2 * kTreeLeafBytes,
                                    3 * kTreeLeafBytes + 12345};

TEST(Checksum64, HasThePublishedValuesOfXxh3) {
  EXPECT_EQ(Checksum64(absl::string_view("")), 0x2d06800538d394c2U);
  EXPECT_EQ(Checksum64(absl::string_view("a")), 0xe6c632b61e964e1fU);
  EXPECT_EQ(Checksum64(absl::string_view("abc")), 0x78af5f94892f3950U);
  EXPECT_EQ(Checksum64(std::span<const uint8_t>()), 0x2d06800538d394c2U);
}

TEST(TreeHash, EqualsItsDefinitionAroundEveryLeafBoundary) {
  for (const size_t size : kSizes) {
    const std::vector<uint8_t> data = Pattern(size);
    EXPECT_EQ(TreeHash(std::span<const uint8_t>(data)), TreeHashByDefinition(data)) << size;
  }
}

// Stored in checkpoints and sent over the wire: a change of these values is a change of the format.
TEST(TreeHash, KeepsItsValues) {
  EXPECT_EQ(TreeHash(std::span<const uint8_t>(Pattern(1))), 0x113425e2d3c1afc3U);
  EXPECT_EQ(TreeHash(std::span<const uint8_t>(Pattern(kTreeLeafBytes))), 0xbfa27c79c2dfdfebU);
  EXPECT_EQ(TreeHash(std::span<const uint8_t>(Pattern(kTreeLeafBytes + 1))), 0x0185ed96d0df6e66U);
}

TEST(TreeHash, CanBeComputedFromLeavesThatWereCheckedOneByOne) {
  const std::vector<uint8_t> data = Pattern(2 * kTreeLeafBytes + 77);
  const std::span<const uint8_t> bytes(data);
  const std::vector<uint64_t> leaves = {Checksum64(bytes.first(kTreeLeafBytes)),
                                        Checksum64(bytes.subspan(kTreeLeafBytes, kTreeLeafBytes)),
                                        Checksum64(bytes.subspan(2 * kTreeLeafBytes))};
  EXPECT_EQ(TreeRoot(leaves), TreeHash(bytes));
}

TEST(TreeHasher, GivesTheSameHashHoweverTheDataIsCut) {
  for (const size_t size : kSizes) {
    const std::vector<uint8_t> data = Pattern(size);
    const uint64_t expected = TreeHash(std::span<const uint8_t>(data));
    for (const size_t piece : {size_t{1000}, size_t{4096}, size_t{65537}, kTreeLeafBytes - 1,
                               kTreeLeafBytes, kTreeLeafBytes + 1, size_t{5} << 20}) {
      TreeHasher hasher;
      for (size_t begin = 0; begin < size; begin += piece) {
        hasher.Update(std::span<const uint8_t>(data).subspan(begin, std::min(piece, size - begin)));
        hasher.Update({});
      }
      EXPECT_EQ(hasher.Finish(), expected) << size << " bytes in pieces of " << piece;
    }
  }
}

TEST(TreeHasher, IsEmptyAgainAfterFinish) {
  const std::vector<uint8_t> data = Pattern(kTreeLeafBytes + 3);
  TreeHasher hasher;
  hasher.Update(data);
  hasher.Finish();
  hasher.Update(data);
  EXPECT_EQ(hasher.Finish(), TreeHash(std::span<const uint8_t>(data)));
  EXPECT_EQ(hasher.Finish(), TreeHash(std::span<const uint8_t>()));
}

TEST(HashToHex, HasSixteenDigits) {
  EXPECT_EQ(HashToHex(0), "0000000000000000");
  EXPECT_EQ(HashToHex(0xAB), "00000000000000ab");
  EXPECT_EQ(HashToHex(~uint64_t{0}), "ffffffffffffffff");
}

#if defined(__x86_64__)
// Whether the processor takes the upper halves of this thread's vector registers for used; nothing
// if it does not say.
std::optional<bool> UpperHalvesAreUsed() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kExtendedStateLeaf = 0xd, kTellsInUse = 1 << 2;
  if (__get_cpuid_count(kExtendedStateLeaf, 1, &a, &b, &c, &d) == 0 || (a & kTellsInUse) == 0) {
    return std::nullopt;
  }
  constexpr uint32_t kAvx = 1 << 2, kUpperAvx512 = 1 << 6;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
  return (a & (kAvx | kUpperAvx512)) != 0;
}

// Otherwise all that is computed after a hash would be slower, up to ten times.
TEST(Checksum, LeavesTheUpperHalvesOfTheVectorRegistersUnused) {
  if (!UpperHalvesAreUsed().has_value()) GTEST_SKIP() << "this processor does not say";
  for (const size_t size : {100, 5000, 3 << 20}) {
    const std::vector<uint8_t> data = Pattern(size);
    const uint64_t hash = Checksum64(data);
    EXPECT_FALSE(*UpperHalvesAreUsed()) << size << " bytes, " << hash;
    const uint64_t tree = TreeHash(data);
    EXPECT_FALSE(*UpperHalvesAreUsed()) << size << " bytes, " << tree;
    TreeHasher hasher;
    hasher.Update(std::span(data).first(size / 2));
    EXPECT_FALSE(*UpperHalvesAreUsed()) << size << " bytes";
    hasher.Update(std::span(data).subspan(size / 2));
    EXPECT_FALSE(*UpperHalvesAreUsed()) << size << " bytes";
    EXPECT_EQ(hasher.Finish(), tree);
    EXPECT_FALSE(*UpperHalvesAreUsed()) << size << " bytes";
  }
}
#endif

}  // namespace
}  // namespace causeway
