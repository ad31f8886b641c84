// The merge against a plain restatement of what it computes: whole arrays, one loop per step, no
// threads, no slices.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/thread_pool.h"
#include "gtest/gtest.h"
#include "server/outer/merge.h"
#include "tests/unit/server/outer/merge_fixture.h"

namespace causeway::server {
namespace {

// The norm's partial sums are part of the result's definition.
constexpr size_t kNormSlice = 4 * kCodecChunk;

double Norm(const std::vector<double>& x) {
  double squares = 0;
  for (size_t begin = 0; begin < x.size(); begin += kNormSlice) {
    const size_t end = std::min(x.size(), begin + kNormSlice);
    double of_slice = 0;
    for (size_t chunk = begin; chunk < end; chunk += kCodecChunk) {
      double s[8] = {};
      for (size_t i = chunk; i < std::min(end, chunk + kCodecChunk); ++i) s[i % 8] += x[i] * x[i];
      of_slice += ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
    squares += of_slice;
  }
  return std::sqrt(squares);
}

std::vector<double> WeightedSum(const MergeInput& input, const std::vector<float>& base) {
  std::vector<double> sum(base.size(), 0.0);
  for (const Contribution& contribution : input.contributions) {
    EXPECT_TRUE(
        contribution.codec->Accumulate(contribution.encoded, base, contribution.weight, sum).ok());
  }
  return sum;
}

MergeResult Oracle(MergeInput input, Fragment& fragment) {
  const size_t n = fragment.theta.size();
  std::sort(input.contributions.begin(), input.contributions.end(),
            [](const auto& a, const auto& b) { return a.worker_id < b.worker_id; });
  const std::vector<float> base =
      input.kind == v1::SyncConfig::GRADIENT ? std::vector<float>(n, 0.0F) : fragment.published;
  if (input.merge == v1::OuterConfig::NORM_AND_DIRECTION && input.contributions.size() > 1) {
    double mean_norm = 0;
    for (Contribution& contribution : input.contributions) {
      std::vector<double> delta(n, 0.0);
      EXPECT_TRUE(contribution.codec->Accumulate(contribution.encoded, base, 1.0, delta).ok());
      const double norm = Norm(delta);
      mean_norm += contribution.weight * norm;
      contribution.weight = norm > 0 ? contribution.weight / norm : 0;
    }
    const double length = Norm(WeightedSum(input, base));
    for (Contribution& contribution : input.contributions) {
      contribution.weight *= length > 0 ? mean_norm / length : 0;
    }
  }
  const std::vector<double> g = WeightedSum(input, base);
  if (!input.contributions.empty()) {
    input.optimizer->Step({.arena_begin = input.arena_begin,
                           .round = input.round,
                           .gradient_norm = Norm(g),
                           .g = g,
                           .theta = fragment.theta,
                           .state = {fragment.state.begin(), fragment.state.end()}});
  }
  MergeResult result;
  const std::vector<uint8_t> answer =
      Encode(*input.answer_codec, fragment.published, fragment.theta);
  result.answer.assign(answer.begin(), answer.end());
  EXPECT_TRUE(input.answer_codec->Apply(result.answer, fragment.published).ok());
  result.answer_hash = TreeHash(std::span<const uint8_t>(result.answer));
  result.published_hash = TreeHash(std::span<const float>(fragment.published));
  return result;
}

struct Case {
  std::string name;
  size_t values;
  size_t workers;
  v1::Codec up;
  v1::Codec down;
  v1::OuterConfig::Optimizer optimizer = v1::OuterConfig::NESTEROV;
  v1::SyncConfig::Contribution kind = v1::SyncConfig::PARAMETER_DELTA;
  v1::OuterConfig::Merge merge = v1::OuterConfig::MEAN;
};

class MergeOracle : public testing::TestWithParam<Case> {};

TEST_P(MergeOracle, SameBitsOnAnyNumberOfThreadsForThreeRounds) {
  const Case& c = GetParam();
  PlacedTensor matrix;
  matrix.info.rows = 100;
  matrix.info.cols = 64;
  matrix.offset = 64;
  const auto optimizer = Optimizer(c.optimizer, 0.7, 0.9, AdamWTrain(0.5), {&matrix, 1});
  Fragment expected(Gaussian(c.values, 1, 0.02), *optimizer);
  const std::vector<int> threads = {0, 1, 3};
  std::vector<Fragment> fragments(threads.size(), expected);
  const std::vector<float> zeros(c.values, 0.0F);
  for (int64_t round = 1; round <= 3; ++round) {
    MergeInput input{.contributions = {},
                     .kind = c.kind,
                     .merge = c.merge,
                     .optimizer = optimizer.get(),
                     .answer_codec = GetCodec(c.down),
                     .round = round,
                     .arena_begin = 64};
    std::vector<std::vector<uint8_t>> bytes(c.workers);
    for (size_t w = 0; w < c.workers; ++w) {
      const std::vector<float>& base =
          c.kind == v1::SyncConfig::GRADIENT ? zeros : expected.published;
      std::vector<float> target = Gaussian(c.values, static_cast<uint64_t>(round) * 100 + w, 0.001);
      for (size_t i = 0; i < c.values; ++i) target[i] += base[i];
      bytes[w] = Encode(*GetCodec(c.up), base, target);
      // The ids are not in the order in which contributions arrive; some were validated before.
      const auto total = static_cast<double>(c.workers * (c.workers + 1)) / 2;
      input.contributions.push_back({.worker_id = std::string(1, static_cast<char>('z' - w)),
                                     .codec = GetCodec(c.up),
                                     .encoded = bytes[w],
                                     .weight = (static_cast<double>(w) + 1) / total,
                                     .validated = w % 2 == 1});
    }
    const MergeResult oracle = Oracle(input, expected);
    for (size_t i = 0; i < threads.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", " << threads[i] << " threads");
      const auto pool = threads[i] == 0 ? nullptr : std::make_unique<ThreadPool>(threads[i]);
      const auto result = MergeFragment(input, fragments[i].view(), pool.get());
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->answer, oracle.answer);
      EXPECT_EQ(result->answer_hash, oracle.answer_hash);
      EXPECT_EQ(result->published_hash, oracle.published_hash);
      EXPECT_EQ(Bits(fragments[i].theta), Bits(expected.theta));
      EXPECT_EQ(Bits(fragments[i].published), Bits(expected.published));
      for (size_t s = 0; s < expected.state.size(); ++s) {
        EXPECT_EQ(Bits(fragments[i].state[s]), Bits(expected.state[s]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lengths, MergeOracle,
    testing::Values(Case{"none", 0, 2, v1::INT4, v1::INT4}, Case{"one", 1, 2, v1::INT4, v1::INT4},
                    Case{"less_than_a_chunk", kCodecChunk - 1, 2, v1::INT4, v1::INT4},
                    Case{"a_chunk", kCodecChunk, 2, v1::INT4, v1::INT4},
                    Case{"a_chunk_and_one", kCodecChunk + 1, 2, v1::INT4, v1::INT4},
                    Case{"a_slice", kMergeSlice, 2, v1::INT4, v1::INT4},
                    Case{"a_slice_and_one", kMergeSlice + 1, 2, v1::INT4, v1::INT4},
                    // The answer's second leaf begins within a slice.
                    Case{"many_slices", 8 * kMergeSlice + 4321, 1, v1::INT4, v1::INT4}),
    [](const auto& test) { return test.param.name; });

constexpr size_t kRagged = kMergeSlice + 2 * kCodecChunk + 77;

INSTANTIATE_TEST_SUITE_P(Codecs, MergeOracle,
                         testing::Values(Case{"fp32", kRagged, 3, v1::FP32, v1::FP32},
                                         Case{"bf16", kRagged, 3, v1::BF16, v1::BF16},
                                         Case{"int8", kRagged, 3, v1::INT8, v1::INT8},
                                         Case{"e3m0", kRagged, 3, v1::E3M0, v1::E3M0},
                                         Case{"e2m1", kRagged, 3, v1::E2M1, v1::E2M1},
                                         Case{"lm2_up_int4_down", kRagged, 3, v1::LM2, v1::INT4},
                                         Case{"int4_up_fp32_down", kRagged, 8, v1::INT4, v1::FP32}),
                         [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Optimizers, MergeOracle,
    testing::Values(Case{"sgd", kRagged, 2, v1::INT4, v1::INT4, v1::OuterConfig::SGD},
                    Case{"adam", kRagged, 3, v1::INT4, v1::INT4, v1::OuterConfig::ADAM},
                    Case{"no_contributions", kRagged, 0, v1::INT4, v1::INT4},
                    Case{"clipped_adamw", kRagged, 2, v1::BF16, v1::FP32, v1::OuterConfig::ADAMW,
                         v1::SyncConfig::GRADIENT}),
    [](const auto& test) { return test.param.name; });

constexpr auto kDirection = v1::OuterConfig::NORM_AND_DIRECTION;

INSTANTIATE_TEST_SUITE_P(
    NormAndDirection, MergeOracle,
    testing::Values(Case{"of_three", kRagged, 3, v1::INT4, v1::INT4, v1::OuterConfig::NESTEROV,
                         v1::SyncConfig::PARAMETER_DELTA, kDirection},
                    Case{"of_three_exact_with_adam", kRagged, 3, v1::FP32, v1::FP32,
                         v1::OuterConfig::ADAM, v1::SyncConfig::PARAMETER_DELTA, kDirection},
                    Case{"of_one", kRagged, 1, v1::E3M0, v1::INT4, v1::OuterConfig::NESTEROV,
                         v1::SyncConfig::PARAMETER_DELTA, kDirection}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace causeway::server
