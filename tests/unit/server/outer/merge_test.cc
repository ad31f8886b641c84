
#include "gmock/gmock.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/server/outer/merge_fixture.h"

namespace causeway::server {
namespace {

using testing::HasSubstr;

constexpr size_t kMergedValues = kMergeSlice + 1000;  // Two slices, the second one ragged.

TEST(MergeFragment, OneWorkerWithExactCodecsIsPlainTraining) {
  const auto optimizer = Optimizer(v1::OuterConfig::NESTEROV, 1, 0);
  const Codec* fp32 = GetCodec(v1::FP32);
  Fragment fragment(GaussianValues(kMergedValues, 1, 1), *optimizer);
  for (int64_t round = 1; round <= 5; ++round) {
    // Every value moves by an arbitrary factor up to 2^28, some change sign, some stay.
    std::vector<float> local = fragment.published;
    const auto seed = static_cast<uint64_t>(round);
    for (size_t i = 0; i < kMergedValues; ++i) {
      const double factor = std::exp2(56 * (RandomUniform(seed, 1, i) - 0.5));
      if (RandomBits(seed, 2, i) % 8 != 0) {
        local[i] = static_cast<float>(factor * RandomNormal(seed, 3, i)) *
                   (round % 2 == 0 ? 1.0F : fragment.published[i]);
      }
      // Within the range that a double difference holds exactly.
      const float ratio = std::abs(local[i] / fragment.published[i]);
      if (!(ratio < 0x1p28F && ratio > 0x1p-28F)) local[i] = fragment.published[i];
    }
    ASSERT_NE(local, fragment.published);
    const std::vector<uint8_t> bytes = Encode(*fp32, fragment.published, local);
    const auto result = MergeFragment(
        {.contributions = {{.worker_id = "a", .codec = fp32, .encoded = bytes, .weight = 1.0}},
         .optimizer = optimizer.get(),
         .answer_codec = fp32,
         .round = round},
        fragment.view(), nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(Bits(fragment.published), Bits(local));
    ASSERT_EQ(Bits(fragment.theta), Bits(local));
  }
}

TEST(MergeFragment, AnswersInFewBitsTrackThetaForEver) {
  const auto optimizer = Optimizer(v1::OuterConfig::NESTEROV, 0.4, 0.9);
  const Codec* fp32 = GetCodec(v1::FP32);
  for (const auto id : {v1::INT4, v1::E2M1, v1::E3M0, v1::LM2, v1::SIGN1}) {
    const size_t n = 1000;
    Fragment fragment(GaussianValues(n, 1, 1), *optimizer);
    std::vector<float> worker = fragment.published;  // A worker's published copy.
    double early = 0;
    double late = 0;
    constexpr int64_t kRounds = 200;
    for (int64_t round = 1; round <= kRounds; ++round) {
      const std::vector<uint8_t> bytes =
          Encode(*fp32, fragment.published,
                 Moved(fragment.published, static_cast<uint64_t>(round) + 100, 0.01));
      const auto result = MergeFragment(
          {.contributions = {{.worker_id = "a", .codec = fp32, .encoded = bytes, .weight = 1.0}},
           .optimizer = optimizer.get(),
           .answer_codec = GetCodec(id),
           .round = round},
          fragment.view(), nullptr);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_TRUE(GetCodec(id)->Apply(result->answer, worker).ok());
      ASSERT_EQ(Bits(worker), Bits(fragment.published));
      ASSERT_EQ(result->published_hash, TreeHash(std::span<const float>(worker)));
      ASSERT_EQ(result->answer_hash, TreeHash(std::span<const uint8_t>(result->answer)));
      double squares = 0;
      for (size_t i = 0; i < n; ++i) {
        const double gap =
            static_cast<double>(fragment.theta[i]) - static_cast<double>(fragment.published[i]);
        squares += gap * gap;
      }
      const double rms = std::sqrt(squares / static_cast<double>(n));
      if (round > 20 && round <= 40) early = std::max(early, rms);
      if (round > kRounds - 20) late = std::max(late, rms);
    }
    EXPECT_GT(early, 0);
    EXPECT_LT(late, 1.5 * early) << v1::Codec_Name(id);
  }
}

// Three workers with different codecs and weights over a fragment of several slices.
class ThreeWorkers : public testing::Test {
 protected:
  ThreeWorkers()
      : optimizer_(Optimizer(v1::OuterConfig::NESTEROV, 0.7, 0.9)),
        fragment_(GaussianValues(kMergedValues, 1, 0.02), *optimizer_) {
    fragment_.state[0] = GaussianValues(kMergedValues, 2, 0.001);
    fragment_.theta = Moved(fragment_.theta, 3, 1e-5);
    const std::vector<v1::Codec> codecs = {v1::INT4, v1::FP32, v1::E3M0};
    for (size_t w = 0; w < codecs.size(); ++w) {
      bytes_.push_back(Encode(*GetCodec(codecs[w]), fragment_.published,
                              Moved(fragment_.published, 10 + w, 0.001)));
      input_.contributions.push_back({.worker_id = "worker-" + std::to_string(w),
                                      .codec = GetCodec(codecs[w]),
                                      .encoded = bytes_.back(),
                                      .weight = (static_cast<double>(w) + 1) / 6});
    }
    input_.optimizer = optimizer_.get();
    input_.answer_codec = GetCodec(v1::INT4);
    input_.round = 3;
  }

  std::unique_ptr<OuterOptimizer> optimizer_;
  Fragment fragment_;
  std::vector<std::vector<uint8_t>> bytes_;
  MergeInput input_;
};

// Two workers that move the same way or not at all alike: the step is as long as theirs on average,
// and has the direction of the mean.
TEST(MergeFragment, NormAndDirectionKeepTheMeanLengthWhateverTheAngle) {
  const auto optimizer = Optimizer(v1::OuterConfig::SGD, 1, 0);
  const Codec* fp32 = GetCodec(v1::FP32);
  constexpr size_t kSize = 3000;
  // One value each: deltas of length 2 and 6, orthogonal, opposed, or none at all.
  struct Angle {
    float first[2], second[2];
    double expected[2];
  };
  const Angle angles[] = {{{2, 0}, {0, 6}, {4 / std::sqrt(2.0), 4 / std::sqrt(2.0)}},
                          {{2, 0}, {6, 0}, {4, 0}},
                          {{2, 0}, {-6, 0}, {0, 0}},
                          {{0, 0}, {0, 6}, {0, 3}},
                          {{0, 0}, {0, 0}, {0, 0}}};
  for (const Angle& angle : angles) {
    Fragment fragment(std::vector<float>(kSize, 0.0F), *optimizer);
    std::vector<float> first(kSize, 0.0F);
    std::vector<float> second(kSize, 0.0F);
    for (size_t i = 0; i < 2; ++i) {
      first[i * 2000] = -angle.first[i];
      second[i * 2000] = -angle.second[i];
    }
    const std::vector<uint8_t> a = Encode(*fp32, fragment.published, first);
    const std::vector<uint8_t> b = Encode(*fp32, fragment.published, second);
    const auto result = MergeFragment(
        {.contributions = {{.worker_id = "a", .codec = fp32, .encoded = a, .weight = 0.5},
                           {.worker_id = "b", .codec = fp32, .encoded = b, .weight = 0.5}},
         .rule = {.merge = v1::OuterConfig::NORM_AND_DIRECTION},
         .optimizer = optimizer.get(),
         .answer_codec = fp32,
         .round = 1},
        fragment.view(), nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(static_cast<double>(fragment.theta[0]), -angle.expected[0], 1e-6);
    EXPECT_NEAR(static_cast<double>(fragment.theta[2000]), -angle.expected[1], 1e-6);
    EXPECT_EQ(fragment.theta[1], 0);
  }
}

TEST_F(ThreeWorkers, HostileContributionLeavesTheStateUntouched) {
  const Fragment before = fragment_;
  ThreadPool pool(2);
  // A minus zero of e3m0 in the last slice, a target that is a NaN, a block scale of infinity.
  std::vector<uint8_t> e3m0 = bytes_[2];
  e3m0.back() = 0x88;
  std::vector<uint8_t> fp32 = bytes_[1];
  const uint32_t to_nan =
      0x7fc00000U - static_cast<uint32_t>(OrderedFromFloat(fragment_.published.back()));
  std::memcpy(fp32.data() + fp32.size() - sizeof(to_nan), &to_nan, sizeof(to_nan));
  std::vector<uint8_t> int4 = bytes_[0];
  int4[0] = 0x80, int4[1] = 0x7f;
  const std::vector<uint8_t> truncated(bytes_[0].begin(), bytes_[0].end() - 1);
  const std::vector<std::pair<size_t, std::span<const uint8_t>>> attacks = {
      {2, e3m0}, {1, fp32}, {0, int4}, {0, truncated}};
  for (const auto& [worker, bytes] : attacks) {
    MergeInput input = input_;
    input.contributions[worker].encoded = bytes;
    EXPECT_THAT(MergeFragment(input, fragment_.view(), &pool),
                StatusIs(kInvalidArgument, HasSubstr("worker-" + std::to_string(worker))));
    EXPECT_TRUE(fragment_ == before);
  }
}

TEST_F(ThreeWorkers, AStepBeyondFp32IsDivergence) {
  const Codec* fp32 = GetCodec(v1::FP32);
  std::vector<float> local = fragment_.published;
  local.back() = -3e38F;
  const std::vector<uint8_t> bytes = Encode(*fp32, fragment_.published, local);
  MergeInput input = input_;
  input.contributions = {{.worker_id = "w", .codec = fp32, .encoded = bytes, .weight = 1.0}};
  Fragment fragment = fragment_;
  auto result = MergeFragment(input, fragment.view(), nullptr);
  EXPECT_THAT(result, StatusIs(kFailedPrecondition, HasSubstr("of theta became")));

  // Finite, but more than four bits can carry.
  local.back() = 1e31F;
  const std::vector<uint8_t> large = Encode(*fp32, fragment_.published, local);
  input.contributions[0].encoded = large;
  fragment = fragment_;
  result = MergeFragment(input, fragment.view(), nullptr);
  EXPECT_THAT(result, StatusIs(kFailedPrecondition, HasSubstr("answer")));
}

TEST_F(ThreeWorkers, AContributionThatIsValidatedIsNotReadTwiceButStillNotTrusted) {
  bytes_[2].back() = 0x88;  // A minus zero of e3m0.
  input_.contributions[2].validated = true;
  EXPECT_THAT(MergeFragment(input_, fragment_.view(), nullptr),
              StatusIs(kInternal, HasSubstr("worker-2, taken for valid")));
}

TEST_F(ThreeWorkers, BadInputIsRefused) {
  const auto refused = [&](const std::string& why, auto change) {
    MergeInput input = input_;
    FragmentState state = fragment_.view();
    change(input, state);
    const Fragment before = fragment_;
    EXPECT_THAT(MergeFragment(input, state, nullptr), StatusIs(kInvalidArgument, HasSubstr(why)));
    EXPECT_TRUE(fragment_ == before);
  };
  refused("two contributions of worker-0",
          [](auto& input, auto&) { input.contributions[2].worker_id = "worker-0"; });
  refused("sum to 1", [](auto& input, auto&) { input.contributions[0].weight = 1; });
  for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    refused("the weight of worker-0",
            [&](auto& input, auto&) { input.contributions[0].weight = weight; });
  }
  refused("as long as theta",
          [](auto&, auto& state) { state.published = state.published.first(10); });
  refused("as long as theta", [](auto&, auto& state) { state.optimizer.clear(); });
}

TEST(MergeGradients, OptimizerStateBeyondFp32IsDivergence) {
  // theta does not tell: the gradient's square overflows, and the step by its root is zero.
  const auto optimizer = Optimizer(v1::OuterConfig::ADAMW, 0.01, 0, AdamWTrain(-1));
  const Codec* fp32 = GetCodec(v1::FP32);
  Fragment fragment({1.0F, 2.0F}, *optimizer);
  const std::vector<uint8_t> bytes = Encode(*fp32, {0.0F, 0.0F}, {-1.0F, -1e25F});
  const auto result = MergeFragment({.contributions = {{"a", fp32, bytes, 1.0}},
                                     .kind = v1::SyncConfig::GRADIENT,
                                     .optimizer = optimizer.get(),
                                     .answer_codec = fp32,
                                     .round = 1},
                                    fragment.view(), nullptr);
  EXPECT_THAT(result, StatusIs(kFailedPrecondition, HasSubstr("value 1 of v became")));
}

TEST(MergeTest, ARoundThatWasRehearsedLeavesTheStateAsItWasWhereItWouldDiverge) {
  const auto optimizer = Optimizer(v1::OuterConfig::NESTEROV, 10, 0.9);
  const size_t n = 3 * kCodecChunk + 5;
  const Codec& codec = *GetCodec(v1::FP32);
  Fragment fragment(GaussianValues(n, 1, 0.02), *optimizer);
  const Fragment before = fragment;
  std::vector<float> target = fragment.published;
  target.back() = -std::numeric_limits<float>::max();
  const std::vector<uint8_t> bytes = Encode(codec, fragment.published, target);
  MergeInput input;
  input.contributions.push_back({"a", &codec, bytes, 1.0, false});
  input.optimizer = optimizer.get();
  input.answer_codec = &codec;
  input.round = 1;
  input.rehearse = true;
  EXPECT_THAT(MergeFragment(input, fragment.view(), nullptr), StatusIs(kFailedPrecondition));
  EXPECT_EQ(fragment, before);

  // A merge that succeeds has the same bits, rehearsed or not.
  target.back() = 1.0F;
  const std::vector<uint8_t> sound = Encode(codec, fragment.published, target);
  input.contributions[0].encoded = sound;
  Fragment other = before;
  const auto rehearsed = MergeFragment(input, fragment.view(), nullptr);
  input.rehearse = false;
  const auto merged = MergeFragment(input, other.view(), nullptr);
  ASSERT_TRUE(rehearsed.ok() && merged.ok());
  EXPECT_EQ(fragment, other);
  EXPECT_EQ(rehearsed->answer_hash, merged->answer_hash);
}

}  // namespace
}  // namespace causeway::server
