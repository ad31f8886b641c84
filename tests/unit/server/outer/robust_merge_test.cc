// Norm clipping and the trimmed mean promise this: nothing for the honest, a bound for the liar.

#include "tests/unit/server/outer/merge_fixture.h"

namespace causeway::server {
namespace {

constexpr size_t kRobustValues = kMergeSlice + 4321;
constexpr auto kTrimmedMean = v1::OuterConfig::TRIMMED_MEAN;

// Sites with deltas of their own, each of a size of its own.
class Sites {
 public:
  explicit Sites(const std::vector<double>& sizes, v1::Codec codec = v1::FP32)
      : base_(GaussianValues(kRobustValues, 1, 0.02)) {
    const auto workers = sizes.size();
    for (size_t w = 0; w < workers; ++w) {
      bytes_.push_back(Encode(*GetCodec(codec), base_, Moved(base_, 10 + w, sizes[w])));
    }
    for (size_t w = 0; w < workers; ++w) {
      contributions_.push_back({.worker_id = "worker-" + std::to_string(w),
                                .codec = GetCodec(codec),
                                .encoded = bytes_[w],
                                .weight = 1.0 / static_cast<double>(workers)});
    }
  }

  std::vector<Contribution>& contributions() { return contributions_; }
  std::vector<double> Merge(const MergeRule& rule) const {
    DeltaCombiner deltas({.contributions = contributions_,
                          .kind = v1::SyncConfig::PARAMETER_DELTA,
                          .rule = rule,
                          .published = base_},
                         nullptr);
    EXPECT_TRUE(deltas.Prepare().ok());
    std::vector<double> g(kRobustValues);
    DeltaCombiner::Scratch scratch;
    const auto combine = [&](Range chunk) {
      return deltas.Combine(chunk, {}, scratch, std::span(g).subspan(chunk.begin, chunk.size));
    };
    EXPECT_TRUE(ForEachChunk({0, kRobustValues}, combine).ok());
    return g;
  }
  std::vector<double> Delta(size_t worker) const {
    std::vector<double> delta(kRobustValues, 0.0);
    const Contribution& contribution = contributions_[worker];
    EXPECT_TRUE(contribution.codec->Accumulate(contribution.encoded, base_, 1.0, delta).ok());
    return delta;
  }

 private:
  const std::vector<float> base_;
  std::vector<std::vector<uint8_t>> bytes_;
  std::vector<Contribution> contributions_;
};

double Length(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// Lengths of these sites' deltas, the shortest first.
std::vector<double> Lengths(const Sites& sites, const std::vector<size_t>& workers) {
  std::vector<double> lengths;
  for (const size_t worker : workers) lengths.push_back(Length(sites.Delta(worker)));
  std::ranges::sort(lengths);
  return lengths;
}

TEST(RobustMerge, WhatShortensAndLeavesOutNothingIsTheMeanBitForBit) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const v1::Codec codec : {v1::FP32, v1::INT4, v1::E3M0}) {
    for (const size_t workers : {1, 2, 5, 8}) {
      const Sites sites(std::vector<double>(workers, 0.001), codec);
      const std::vector<double> mean = sites.Merge({});
      EXPECT_EQ(sites.Merge({.clip_factor = kInfinity}), mean);
      // All are about as long.
      EXPECT_EQ(sites.Merge({.clip_factor = 1.5}), mean);
      EXPECT_EQ(sites.Merge({.merge = kTrimmedMean, .trim = 0}), mean);
      EXPECT_EQ(sites.Merge({.merge = kTrimmedMean, .clip_factor = kInfinity, .trim = 0}), mean);
      if (workers < 5) {
        EXPECT_EQ(sites.Merge({.merge = kTrimmedMean, .trim = 1}), mean);
      } else {
        EXPECT_NE(sites.Merge({.merge = kTrimmedMean, .trim = 1}), mean);
      }
    }
  }
}

// Three honest sites, and one whose delta is 100 times as long.
TEST(RobustMerge, ClippingLeavesALongDeltaItsShareOfTheMedianAndTheOthersTheirs) {
  const Sites sites({0.001, 0.001, 0.1, 0.001});
  const std::vector<double> merged = sites.Merge({.clip_factor = 2});
  std::vector<double> of_liar = merged;
  for (const size_t honest : {0, 1, 3}) {
    const std::vector<double> delta = sites.Delta(honest);
    for (size_t i = 0; i < kRobustValues; ++i) of_liar[i] -= 0.25 * delta[i];
  }
  const std::vector<double> lengths = Lengths(sites, {0, 1, 3});
  EXPECT_NEAR(Length(of_liar), 0.25 * 2 * lengths[1], 1e-9 * lengths[1]);
  // Its direction stays.
  const std::vector<double> lie = sites.Delta(2);
  double product = 0;
  for (size_t i = 0; i < kRobustValues; ++i) product += lie[i] * of_liar[i];
  EXPECT_NEAR(product / Length(lie) / Length(of_liar), 1, 1e-9);
}

// Neither a site that did not train nor one that sends nothing says what is usual.
TEST(RobustMerge, DeltasWithoutWeightOrLengthDoNotCountForTheMedian) {
  Sites sites({0, 0, 0, 0.001, 0.001, 1e-9});
  sites.contributions()[5].weight = 0;
  for (size_t w = 0; w < 5; ++w) sites.contributions()[w].weight = 0.2;
  EXPECT_EQ(sites.Merge({.clip_factor = 1.5}), sites.Merge({}));
}

TEST(RobustMerge, SoManyLiarsAsAreTrimmedMoveNoValueBeyondTheHonestOnes) {
  // Two of seven, as large as floats get.
  const Sites sites({0.001, 0.001, 1e30, 0.001, 0.001, 1e30, 0.001});
  const std::vector<double> merged = sites.Merge({.merge = kTrimmedMean, .trim = 2});
  std::vector<std::vector<double>> honest;
  for (const size_t worker : {0, 1, 3, 4, 6}) honest.push_back(sites.Delta(worker));
  for (size_t i = 0; i < kRobustValues; ++i) {
    double least = honest[0][i];
    double most = honest[0][i];
    for (const std::vector<double>& delta : honest) {
      least = std::min(least, delta[i]);
      most = std::max(most, delta[i]);
    }
    ASSERT_GE(merged[i], least - 1e-15) << i;
    ASSERT_LE(merged[i], most + 1e-15) << i;
  }
  // One is not enough against two.
  EXPECT_GT(Length(sites.Merge({.merge = kTrimmedMean, .trim = 1})), 1e20);
}

// Five sites, one of which did not train: four are not trimmed, and its values leave none out.
TEST(RobustMerge, ADeltaWithoutWeightLeavesNoneOut) {
  Sites sites({0.001, 0.001, 0.001, 0.001, 0.001});
  sites.contributions()[2].weight = 0;
  for (const size_t w : {0, 1, 3, 4}) sites.contributions()[w].weight = 0.25;
  EXPECT_EQ(sites.Merge({.merge = kTrimmedMean, .trim = 1}), sites.Merge({}));
}

}  // namespace
}  // namespace causeway::server
