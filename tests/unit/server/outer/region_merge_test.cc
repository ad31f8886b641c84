#include "server/outer/merge.h"

#include "tests/unit/server/outer/merge_fixture.h"

namespace causeway::server {
namespace {

// Not a whole number of slices, chunks or blocks.
constexpr size_t kRegionValues = 2 * kMergeSlice + 3 * 4096 + 77;

struct TwoSites {
  explicit TwoSites(v1::Codec id) : codec(GetCodec(id)) {
    for (uint64_t site = 0; site < 2; ++site) {
      objects.push_back(Encode(*codec, published, Moved(published, 10 + site, 0.01)));
    }
  }
  RegionMergeInput Input(const std::vector<double>& weights) const {
    RegionMergeInput input;
    for (size_t i = 0; i < weights.size(); ++i) {
      input.deltas.contributions.push_back(
          {i == 0 ? "a" : "b", codec, objects[i], weights[i], /*validated=*/false});
    }
    input.deltas.published = published;
    input.codec = codec;
    return input;
  }
  std::vector<double> Decode(std::span<const uint8_t> object) const {
    std::vector<double> delta(kRegionValues, 0.0);
    EXPECT_TRUE(codec->Accumulate(object, published, 1.0, delta).ok());
    return delta;
  }

  const Codec* codec;
  std::vector<float> published = GaussianValues(kRegionValues, 1, 1.0);
  std::vector<std::vector<uint8_t>> objects;
};

TEST(RegionMergeTest, NothingOfTheMeanIsLost) {
  const TwoSites sites(v1::INT4);
  std::vector<float> residual = GaussianValues(kRegionValues, 5, 0.001);
  const std::vector<float> before = residual;
  const auto merged = MergeForParent(sites.Input({0.25, 0.75}), residual, nullptr).value();
  EXPECT_EQ(merged.answer_leaves, LeafChecksums(merged.answer));
  const std::vector<double> a = sites.Decode(sites.objects[0]);
  const std::vector<double> b = sites.Decode(sites.objects[1]);
  const std::vector<double> sent = sites.Decode(merged.answer);
  double left = 0;
  for (size_t i = 0; i < kRegionValues; ++i) {
    const double wanted = 0.25 * a[i] + 0.75 * b[i] + before[i];
    ASSERT_NEAR(sent[i] + residual[i], wanted, 1e-7 * (1 + std::abs(wanted))) << i;
    left += std::abs(residual[i]);
  }
  EXPECT_GT(left, 0);
}

TEST(RegionMergeTest, ThreadsDoNotChangeABit) {
  const TwoSites sites(v1::INT4);
  std::vector<float> one = GaussianValues(kRegionValues, 5, 0.001);
  std::vector<float> three = one;
  ThreadPool pool(3);
  const auto alone = MergeForParent(sites.Input({0.5, 0.5}), one, nullptr);
  const auto together = MergeForParent(sites.Input({0.5, 0.5}), three, &pool);
  ASSERT_TRUE(alone.ok() && together.ok());
  EXPECT_EQ(alone->answer_leaves, together->answer_leaves);
  EXPECT_EQ(Bits(one), Bits(three));
}

TEST(RegionMergeTest, OneFp32DeltaGoesUpAsItCame) {
  const TwoSites sites(v1::FP32);
  std::vector<float> residual(kRegionValues, 0.0F);
  const auto merged = MergeForParent(sites.Input({1}), residual, nullptr).value();
  EXPECT_EQ(std::vector<uint8_t>(merged.answer.begin(), merged.answer.end()), sites.objects[0]);
}

TEST(RegionMergeTest, WithoutSitesItCarriesNothingAndKeepsTheResidual) {
  const TwoSites sites(v1::INT4);
  std::vector<float> residual = GaussianValues(kRegionValues, 5, 0.001);
  const std::vector<float> before = residual;
  const auto merged = MergeForParent(sites.Input({}), residual, nullptr).value();
  for (const double value : sites.Decode(merged.answer)) ASSERT_EQ(value, 0);
  EXPECT_EQ(Bits(residual), Bits(before));
}

TEST(RegionMergeTest, ALateDeltaGoesBackIntoTheResidual) {
  for (const v1::Codec id : {v1::INT4, v1::FP32}) {
    const TwoSites sites(id);
    std::vector<float> residual(kRegionValues, 0.0F);
    const auto merged = MergeForParent(sites.Input({1}), residual, nullptr).value();
    ASSERT_TRUE(FoldBack(*sites.codec, merged.answer, sites.published, residual).ok());
    const std::vector<double> wanted = sites.Decode(sites.objects[0]);
    for (size_t i = 0; i < kRegionValues; ++i) ASSERT_NEAR(residual[i], wanted[i], 1e-8) << i;
  }
}

}  // namespace
}  // namespace causeway::server
