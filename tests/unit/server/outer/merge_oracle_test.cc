// The merge against a plain restatement of what it computes: whole arrays, one loop per step, no
// threads, no slices.

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

std::vector<double> Delta(const Contribution& contribution, const std::vector<float>& base,
                          double factor) {
  std::vector<double> delta(base.size(), 0.0);
  EXPECT_TRUE(contribution.codec->Accumulate(contribution.encoded, base, factor, delta).ok());
  return delta;
}

// Shortens each contribution, where a factor of the median is given.
std::vector<double> Scales(const MergeInput& input, const std::vector<float>& base) {
  std::vector<double> scales(input.contributions.size(), 1.0);
  if (input.rule.clip_factor == 0 || scales.size() < 2) return scales;
  std::vector<double> norms;
  for (const Contribution& contribution : input.contributions) {
    norms.push_back(Norm(Delta(contribution, base, 1.0)));
  }
  std::vector<double> ordered = norms;
  std::sort(ordered.begin(), ordered.end());
  const double longest = input.rule.clip_factor * ordered[(ordered.size() - 1) / 2];
  for (size_t m = 0; m < norms.size(); ++m) {
    if (norms[m] > longest) scales[m] = longest / norms[m];
  }
  return scales;
}

std::vector<double> TrimmedMeanOf(const MergeInput& input, const std::vector<float>& base,
                                  size_t trim) {
  const std::vector<double> scales = Scales(input, base);
  std::vector<std::vector<double>> deltas;
  for (size_t m = 0; m < scales.size(); ++m) {
    deltas.push_back(Delta(input.contributions[m], base, scales[m]));
  }
  std::vector<double> mean(base.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    std::vector<size_t> order(deltas.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return deltas[a][i] < deltas[b][i]; });
    std::sort(order.begin() + static_cast<std::ptrdiff_t>(trim),
              order.end() - static_cast<std::ptrdiff_t>(trim));
    double sum = 0;
    double weight = 0;
    for (size_t k = trim; k < order.size() - trim; ++k) {
      sum += input.contributions[order[k]].weight * deltas[order[k]][i];
      weight += input.contributions[order[k]].weight;
    }
    mean[i] = sum / weight;
  }
  return mean;
}

std::vector<double> Merged(MergeInput input, const std::vector<float>& base) {
  const size_t workers = input.contributions.size();
  const std::vector<double> scales = Scales(input, base);
  if (input.rule.merge == v1::OuterConfig::TRIMMED_MEAN && workers >= 5 && input.rule.trim > 0) {
    return TrimmedMeanOf(input, base,
                         std::min(static_cast<size_t>(input.rule.trim), (workers - 1) / 2));
  }
  if (input.rule.merge == v1::OuterConfig::NORM_AND_DIRECTION && workers > 1) {
    double mean_norm = 0;
    for (size_t m = 0; m < workers; ++m) {
      Contribution& contribution = input.contributions[m];
      const double norm = Norm(Delta(contribution, base, 1.0));
      mean_norm += contribution.weight * (scales[m] * norm);
      contribution.weight = norm > 0 ? contribution.weight / norm : 0;
    }
    const double length = Norm(WeightedSum(input, base));
    for (Contribution& contribution : input.contributions) {
      contribution.weight *= length > 0 ? mean_norm / length : 0;
    }
  } else {
    for (size_t m = 0; m < workers; ++m) input.contributions[m].weight *= scales[m];
  }
  return WeightedSum(input, base);
}

MergeResult Oracle(MergeInput input, Fragment& fragment) {
  const size_t n = fragment.theta.size();
  std::sort(input.contributions.begin(), input.contributions.end(),
            [](const auto& a, const auto& b) { return a.worker_id < b.worker_id; });
  const std::vector<float> base =
      input.kind == v1::SyncConfig::GRADIENT ? std::vector<float>(n, 0.0F) : fragment.published;
  const std::vector<double> g = Merged(input, base);
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
  MergeRule rule = {};
};

class MergeOracle : public testing::TestWithParam<Case> {};

TEST_P(MergeOracle, SameBitsOnAnyNumberOfThreadsForThreeRounds) {
  const Case& c = GetParam();
  PlacedTensor matrix;
  matrix.info.rows = 100;
  matrix.info.cols = 64;
  matrix.offset = 64;
  const auto optimizer = Optimizer(c.optimizer, 0.7, 0.9, AdamWTrain(0.5), {&matrix, 1});
  Fragment expected(GaussianValues(c.values, 1, 0.02), *optimizer);
  const std::vector<int> threads = {0, 1, 3};
  std::vector<Fragment> fragments(threads.size(), expected);
  const std::vector<float> zeros(c.values, 0.0F);
  for (int64_t round = 1; round <= 3; ++round) {
    MergeInput input{.contributions = {},
                     .kind = c.kind,
                     .rule = c.rule,
                     .optimizer = optimizer.get(),
                     .answer_codec = GetCodec(c.down),
                     .round = round,
                     .arena_begin = 64};
    std::vector<std::vector<uint8_t>> bytes(c.workers);
    for (size_t w = 0; w < c.workers; ++w) {
      const std::vector<float>& base =
          c.kind == v1::SyncConfig::GRADIENT ? zeros : expected.published;
      // One is much longer than the others.
      bytes[w] = Encode(*GetCodec(c.up), base,
                        Moved(base, static_cast<uint64_t>(round) * 100 + w,
                              w == 1 && c.rule.clip_factor > 0 ? 0.01 : 0.001));
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
      const auto result = MergeFragment(input, fragments[i].view(), pool.get()).value();
      EXPECT_EQ(result.answer, oracle.answer);
      EXPECT_EQ(result.answer_hash, oracle.answer_hash);
      EXPECT_EQ(result.published_hash, oracle.published_hash);
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
                                         Case{"lm2", kRagged, 3, v1::LM2, v1::LM2},
                                         Case{"sign1", kRagged, 3, v1::SIGN1, v1::SIGN1},
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

constexpr auto kDelta = v1::SyncConfig::PARAMETER_DELTA;
constexpr auto kGradient = v1::SyncConfig::GRADIENT;
constexpr auto kNesterov = v1::OuterConfig::NESTEROV;
constexpr auto kAdam = v1::OuterConfig::ADAM;
constexpr auto kAdamW = v1::OuterConfig::ADAMW;
constexpr MergeRule kDirection = {.merge = v1::OuterConfig::NORM_AND_DIRECTION};

constexpr MergeRule Clipped(double factor) { return {.clip_factor = factor}; }
constexpr MergeRule Trimmed(int trim, double clip_factor = 0) {
  return {.merge = v1::OuterConfig::TRIMMED_MEAN, .clip_factor = clip_factor, .trim = trim};
}

INSTANTIATE_TEST_SUITE_P(
    Rules, MergeOracle,
    testing::Values(
        Case{"of_three", kRagged, 3, v1::INT4, v1::INT4, kNesterov, kDelta, kDirection},
        Case{"of_three_exact_with_adam", kRagged, 3, v1::FP32, v1::FP32, kAdam, kDelta, kDirection},
        Case{"of_one", kRagged, 1, v1::E3M0, v1::INT4, kNesterov, kDelta, kDirection},
        Case{"clipped", kRagged, 4, v1::INT4, v1::INT4, kNesterov, kDelta, Clipped(1.5)},
        Case{"clipped_exact", kRagged, 3, v1::FP32, v1::FP32, kNesterov, kDelta, Clipped(1)},
        Case{"clipped_gradients", kRagged, 3, v1::BF16, v1::FP32, kAdamW, kGradient, Clipped(2)},
        Case{"trimmed_five", kRagged, 5, v1::INT4, v1::INT4, kNesterov, kDelta, Trimmed(1)},
        Case{"to_the_median", kRagged, 6, v1::E3M0, v1::INT8, kNesterov, kDelta, Trimmed(7)},
        Case{"three_of_nine", kRagged, 9, v1::FP32, v1::FP32, kNesterov, kDelta, Trimmed(3)},
        Case{"clipped_and_trimmed", kRagged, 5, v1::LM2, v1::INT4, kAdam, kDelta, Trimmed(1, 1.25)},
        Case{"trimmed_gradients", kRagged, 5, v1::BF16, v1::BF16, kAdamW, kGradient, Trimmed(1)},
        Case{"too_few_to_trim", kRagged, 4, v1::INT4, v1::INT4, kNesterov, kDelta, Trimmed(1)}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace causeway::server
