#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "worker/sync/replica.h"

namespace causeway::worker {
namespace {

using testing::HasSubstr;

std::vector<float> Values(size_t size, uint64_t seed) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>(RandomBits(seed, 0, i) % 2001) * 1e-4F - 0.1F;
  }
  return values;
}

TEST(EncodedObject, HasTheBytesAndTheChecksumsOfAnEncodingInOnePiece) {
  for (const v1::Codec id : {v1::FP32, v1::BF16, v1::INT4}) {
    const Codec& codec = *FindCodec(id).value();
    for (const size_t size : {size_t{1}, size_t{65'536}, size_t{600'001}, size_t{4'300'000}}) {
      const std::vector<float> base = Values(size, 1);
      const std::vector<float> target = Values(size, 2);
      std::vector<float> residual = Values(size, 3);
      std::vector<float> same_residual = residual;
      const auto object =
          EncodeObject(codec, base, target, {.residual = residual, .decay = 0.5F}).value();
      std::vector<uint8_t> whole(codec.EncodedBytes(size));
      ASSERT_TRUE(
          codec.Encode(base, target, {.residual = same_residual, .decay = 0.5F}, whole).ok());
      // Not EXPECT_EQ, which would print megabytes.
      EXPECT_TRUE(std::equal(whole.begin(), whole.end(), object.bytes.begin(), object.bytes.end()))
          << codec.name() << ' ' << size;
      EXPECT_TRUE(residual == same_residual) << codec.name() << ' ' << size;
      EXPECT_EQ(object.leaves, LeafChecksums(whole)) << codec.name() << ' ' << size;
    }
  }
}

TEST(EncodedObject, OfWhatIsNotFiniteIsRefusedWithThePlace) {
  const std::vector<float> base(100'000);
  std::vector<float> target = base;
  target[70'000] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(EncodeObject(*FindCodec(v1::INT4).value(), base, target, {}),
              StatusIs(kInvalidArgument,
                       AllOf(HasSubstr("counted from value 65536"), HasSubstr("value 4464"))));
}

TEST(EncodedObject, OfArraysOfUnequalLengthIsRefused) {
  const std::vector<float> base(100);
  const std::vector<float> target(99);
  std::vector<float> residual(98);
  const Codec& codec = *FindCodec(v1::INT4).value();
  EXPECT_THAT(EncodeObject(codec, base, target, {}), StatusIs(kInvalidArgument));
  EXPECT_THAT(EncodeObject(codec, base, base, {.residual = residual}), StatusIs(kInvalidArgument));
}

constexpr int kFragments = 4;

v1::RunConfig RunWith(const std::string& sync) {
  v1::RunConfig config =
      ParseRunConfig(absl::StrCat("model { layers: 3 width: 64 heads: 2 mlp_width: 128 "
                                  "vocabulary_size: 1000 sequence_length: 8 } train { steps: 100 } "
                                  "sync { pattern: BALANCED fragments: ",
                                  kFragments, " ", sync, " }"),
                     "test")
          .value();
  const auto warnings = CompleteRunConfig(config);
  EXPECT_TRUE(warnings.ok()) << warnings.status();
  return config;
}

// A replica of which every fragment is held, and then has moved.
class Host {
 public:
  explicit Host(const v1::RunConfig& config)
      : config_(config),
        plan_(FragmentPlan::Create(config_).value()),
        local_(static_cast<size_t>(plan_.arena_size())),
        replica_(plan_, config_.sync(), local_, {}) {
    published_ = local_;
    InitializeParameters(plan_, 5, published_);
    InitializeParameters(plan_, 6, local_);
    for (int i = 0; i < kFragments; ++i) {
      EXPECT_TRUE(replica_.SetPublished(i, Bytes(Part(published_, i))).ok());
      if (config_.sync().keep_in_flight() == 0) continue;
      EXPECT_TRUE(replica_.Hold(i).ok());
    }
    InitializeParameters(plan_, 7, local_);
    for (int i = 0; i < kFragments; ++i) answers_.push_back(Answer(i));
  }

  std::span<const float> Part(const std::vector<float>& values, int fragment) const {
    const FragmentRange& range = plan_.range(fragment);
    return std::span(values).subspan(static_cast<size_t>(range.begin),
                                     static_cast<size_t>(range.size()));
  }
  HostReplica& replica() { return replica_; }
  const std::vector<float>& local() const { return local_; }
  const std::vector<float>& published() const { return published_; }
  const std::vector<uint8_t>& answer(int fragment) const {
    return answers_[static_cast<size_t>(fragment)].first;
  }
  uint64_t hash(int fragment) const { return answers_[static_cast<size_t>(fragment)].second; }

  void Merge(int fragment) {
    ASSERT_EQ(replica_.Merge(fragment, answer(fragment), 0.25F), absl::OkStatus());
    EXPECT_EQ(*replica_.FinishMerge(fragment), this->hash(fragment));
  }

 private:
  static std::span<const uint8_t> Bytes(std::span<const float> values) {
    return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
  }

  // With the hash of the published copy after it.
  std::pair<std::vector<uint8_t>, uint64_t> Answer(int fragment) const {
    const Codec& codec = *FindCodec(config_.sync().codec_down()).value();
    std::vector<float> theta(published_);
    InitializeParameters(plan_, 8, theta);
    const std::span<const float> base = Part(published_, fragment);
    std::vector<uint8_t> answer(codec.EncodedBytes(base.size()));
    EXPECT_TRUE(codec.Encode(base, Part(theta, fragment), {}, answer).ok());
    std::vector<float> after(base.begin(), base.end());
    EXPECT_TRUE(codec.Apply(answer, after).ok());
    return {std::move(answer), TreeHash(std::span<const float>(after))};
  }

  const v1::RunConfig config_;
  const FragmentPlan plan_;
  std::vector<float> local_;
  HostReplica replica_;
  std::vector<float> published_;
  std::vector<std::pair<std::vector<uint8_t>, uint64_t>> answers_;
};

class StagedAnswers : public testing::TestWithParam<const char*> {};

// More of them than it has room for, of several slices.
TEST_P(StagedAnswers, GiveTheBitsOfThoseThatAreNotAndChangeNothingBefore) {
  const v1::RunConfig config = RunWith(GetParam());
  Host staged(config);
  Host plain(config);
  const std::vector<float> local = staged.local();
  for (int i = 0; i < kFragments; ++i) {
    ASSERT_TRUE(staged.replica().StageAnswer(i, staged.answer(i)).ok());
  }
  EXPECT_TRUE(std::ranges::equal(*staged.replica().Published(), staged.published()));
  EXPECT_TRUE(staged.local() == local);
  for (int i = kFragments - 1; i >= 0; --i) {
    staged.Merge(i);
    plain.Merge(i);
  }
  EXPECT_TRUE(std::ranges::equal(*staged.replica().Published(), *plain.replica().Published()));
  EXPECT_FALSE(std::ranges::equal(*staged.replica().Published(), staged.published()));
  EXPECT_TRUE(staged.local() == plain.local());
  EXPECT_FALSE(staged.local() == local);
}

INSTANTIATE_TEST_SUITE_P(All, StagedAnswers,
                         testing::Values("codec_down: FP32", "codec_down: LM2",
                                         "codec_down: INT4 keep_in_flight: 0.5"));

TEST(HostReplica, RefusesADamagedAnswerWhenItIsStaged) {
  Host host(RunWith("codec_down: INT4"));
  std::vector<uint8_t> shorter = host.answer(0);
  shorter.pop_back();
  EXPECT_THAT(host.replica().StageAnswer(0, shorter), StatusIs(kInvalidArgument));
}

}  // namespace
}  // namespace causeway::worker
