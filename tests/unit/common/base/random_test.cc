#include "common/base/random.h"

#include <vector>

#include "gtest/gtest.h"

namespace causeway {
namespace {

// The order of the data and the initial weights of every run follow from these values: whoever
// changes them changes what a seed means.
TEST(RandomBits, KeepsItsStream) {
  EXPECT_EQ(RandomBits(0, 0, 0), 0x59dfae82f98bc841U);
  EXPECT_EQ(RandomBits(1, 0, 0), 0x9eaea393167cde59U);
  EXPECT_EQ(RandomBits(0, 1, 0), 0x0981bc87dcc0b121U);
  EXPECT_EQ(RandomBits(0, 0, 1), 0xb7855e8795270c13U);
  EXPECT_EQ(RandomBits(42, 7, 1'000'000), 0x4d69e1a649e53246U);
  EXPECT_EQ(RandomBits(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}), 0xe1af94db1af89ff9U);
}

TEST(RandomBits, EveryArgumentMovesHalfOfTheBits) {
  const auto mean_flips = [](auto bits_of) {
    int flips = 0;
    for (int bit = 0; bit < 64; ++bit) flips += std::popcount(bits_of(uint64_t{1} << bit));
    return flips / 64.0;
  };
  const uint64_t origin = RandomBits(5, 6, 7);
  EXPECT_NEAR(mean_flips([&](uint64_t b) { return origin ^ RandomBits(5 ^ b, 6, 7); }), 32, 3);
  EXPECT_NEAR(mean_flips([&](uint64_t b) { return origin ^ RandomBits(5, 6 ^ b, 7); }), 32, 3);
  EXPECT_NEAR(mean_flips([&](uint64_t b) { return origin ^ RandomBits(5, 6, 7 ^ b); }), 32, 3);
}

TEST(RandomUniform, FillsTheUnitIntervalEvenly) {
  constexpr int kDraws = 1 << 18;
  constexpr int kBins = 64;
  std::vector<int> bins(kBins);
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = RandomUniform(11, 3, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  double chi_squared = 0;
  constexpr double kExpected = static_cast<double>(kDraws) / kBins;
  for (const int count : bins) chi_squared += (count - kExpected) * (count - kExpected) / kExpected;
  EXPECT_LT(chi_squared, 120);  // 63 degrees of freedom: mean 63, deviation 11.
  EXPECT_GT(chi_squared, 25);
}

TEST(RandomNormal, HasTheMomentsOfTheStandardNormal) {
  constexpr int kDraws = 1 << 18;
  double sum[5] = {};
  double neighbours = 0;
  double last = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = RandomNormal(1, 2, i);
    ASSERT_TRUE(std::isfinite(x));
    double power = 1;
    for (double& s : sum) {
      s += power;
      power *= x;
    }
    neighbours += x * last;
    last = x;
  }
  EXPECT_NEAR(sum[1] / kDraws, 0, 0.01);
  EXPECT_NEAR(sum[2] / kDraws, 1, 0.02);
  EXPECT_NEAR(sum[3] / kDraws, 0, 0.05);
  EXPECT_NEAR(sum[4] / kDraws, 3, 0.1);
  EXPECT_NEAR(neighbours / kDraws, 0, 0.01);
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
