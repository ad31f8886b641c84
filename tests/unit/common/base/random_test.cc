#include "common/base/random.h"

#include <vector>

#include "gtest/gtest.h"

namespace causeway {
namespace {

// The order of the data and the initial weights of every run follow from these values: whoever
// changes them changes what a seed means.
TEST(RandomBits, KeepsItsStreamOfWhichUniformValuesAreTheHighBits) {
  EXPECT_EQ(RandomBits(0, 0, 0), 0x59dfae82f98bc841U);
  EXPECT_EQ(RandomBits(1, 0, 0), 0x9eaea393167cde59U);
  EXPECT_EQ(RandomBits(0, 1, 0), 0x0981bc87dcc0b121U);
  EXPECT_EQ(RandomBits(0, 0, 1), 0xb7855e8795270c13U);
  EXPECT_EQ(RandomBits(42, 7, 1'000'000), 0x4d69e1a649e53246U);
  EXPECT_EQ(RandomBits(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}), 0xe1af94db1af89ff9U);
  EXPECT_EQ(RandomUniform(0, 0, 0), 0x1p-53 * static_cast<double>(0x59dfae82f98bc841U >> 11));
}

TEST(RandomNormal, KeepsItsValuesUpToTheMathLibrary) {
  EXPECT_NEAR(RandomNormal(0, 0, 0), -0.19214063055539457, 1e-12);
  EXPECT_NEAR(RandomNormal(42, 7, 1'000'000), -0.17015802374599454, 1e-12);
}

TEST(RandomPermutation, IsABijectionForEverySize) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = 1; size <= 130; ++size) sizes.push_back(size);
  for (const uint64_t size : {255, 256, 257, 1000, 4095, 4096, 4097, 65536, 65537}) {
    sizes.push_back(size);
  }
  for (const uint64_t size : sizes) {
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = RandomPermutation(9, 4, size, i);
      ASSERT_LT(image, size) << size;
      ASSERT_FALSE(seen[image]) << size << ": " << image << " twice";
      seen[image] = true;
    }
  }
}

TEST(RandomPermutation, KeepsItsOrder) {
  const std::vector<uint64_t> expected = {1, 9, 5, 6, 7, 2, 3, 4, 8, 0};
  for (uint64_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(RandomPermutation(1, 2, 10, i), expected[i]) << i;
  }
  EXPECT_EQ(RandomPermutation(3, 4, 1'000'000, 123'456), 823'531U);
  EXPECT_EQ(RandomPermutation(3, 4, (uint64_t{1} << 40) + 1, 5), 578'457'074'443U);
}

TEST(RandomPermutation, DiffersBySeedAndStreamAndIsNoRotation) {
  constexpr uint64_t kSize = 1000;
  int same_seed = 0, same_stream = 0, same_step = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    const uint64_t image = RandomPermutation(1, 1, kSize, i);
    same_seed += image == RandomPermutation(2, 1, kSize, i);
    same_stream += image == RandomPermutation(1, 2, kSize, i);
    same_step += (RandomPermutation(1, 1, kSize, (i + 1) % kSize) + kSize - image) % kSize == 1;
  }
  // About one coincidence each is to be expected of independent permutations.
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(same_stream, 10);
  EXPECT_LT(same_step, 10);
}

}  // namespace
}  // namespace causeway
