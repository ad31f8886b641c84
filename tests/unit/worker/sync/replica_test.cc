#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "worker/sync/host_part.h"

namespace causeway::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kFragments = 4;

v1::RunConfig RunWith(const std::string& sync,
                      const std::string& sizes = "width: 64 mlp_width: 128") {
  v1::RunConfig config =
      ParseRunConfig(
          absl::StrCat("model { layers: 3 heads: 2 vocabulary_size: 1000 "
                       "sequence_length: 8 ",
                       sizes, " } train { steps: 100 } sync { pattern: BALANCED fragments: ",
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
        replica_(MakeHostReplica(plan_, config_.sync(), local_, {}).value()) {
    published_ = local_;
    InitializeParameters(plan_, 5, published_);
    InitializeParameters(plan_, 6, local_);
    for (int i = 0; i < kFragments; ++i) {
      EXPECT_TRUE(replica_->SetPublished(i, Bytes(Part(published_, i))).ok());
      if (config_.sync().keep_in_flight() == 0) continue;
      EXPECT_TRUE(replica_->Hold(i).ok());
    }
    InitializeParameters(plan_, 7, local_);
    for (int i = 0; i < kFragments; ++i) answers_.push_back(Answer(i));
  }

  std::span<const float> Part(const std::vector<float>& values, int fragment) const {
    const FragmentRange& range = plan_.range(fragment);
    return std::span(values).subspan(static_cast<size_t>(range.begin),
                                     static_cast<size_t>(range.size()));
  }
  Replica& replica() { return *replica_; }
  const std::vector<float>& local() const { return local_; }
  const std::vector<float>& published() const { return published_; }
  const std::vector<uint8_t>& answer(int fragment) const {
    return answers_[static_cast<size_t>(fragment)].first;
  }
  uint64_t hash(int fragment) const { return answers_[static_cast<size_t>(fragment)].second; }

  void Merge(int fragment) {
    ASSERT_EQ(replica_->Merge(fragment, answer(fragment), 0.25F), absl::OkStatus());
    EXPECT_EQ(*replica_->FinishMerge(fragment), this->hash(fragment));
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
  const std::unique_ptr<Replica> replica_;
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

// The object has several leaves.
TEST(HostReplica, SendsWhatTheCodecMakesWithTheChecksumsOfItsLeaves) {
  for (const char* const up : {"FP32", "INT4"}) {
    const v1::RunConfig config =
        RunWith(absl::StrCat("error_feedback: true error_feedback_decay: 0.5 codec_up: ", up),
                "width: 512 mlp_width: 2048");
    const FragmentPlan plan = FragmentPlan::Create(config).value();
    const FragmentRange& range = plan.range(1);
    const auto part = [&](std::span<float> arena) {
      return arena.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    };
    std::vector<float> published(static_cast<size_t>(plan.arena_size()));
    std::vector<float> local = published;
    InitializeParameters(plan, 5, published);
    const auto replica = MakeHostReplica(plan, config.sync(), local, {}).value();
    ASSERT_TRUE(replica->SetPublished(1, MutableBytesOf(part(published))).ok());
    const Codec& codec = *FindCodec(config.sync().codec_up()).value();
    std::vector<uint8_t> bytes(codec.EncodedBytes(part(local).size()));
    std::vector<float> residual(part(local).size());
    for (const uint64_t seed : {6, 7}) {
      InitializeParameters(plan, seed, local);
      const EncodedObject object = replica->Snapshot(1).value()->Encode().value();
      ASSERT_TRUE(codec.Encode(part(published), part(local), {residual, 0.5F}, bytes).ok());
      // Not EXPECT_EQ, which would print megabytes.
      EXPECT_TRUE(std::ranges::equal(object.bytes, bytes)) << up;
      EXPECT_EQ(object.leaves, LeafChecksums(bytes)) << up;
      EXPECT_GT(object.leaves.size(), 1U);
    }
    Replica::State state = replica->Save().value();
    EXPECT_TRUE(std::ranges::equal(part(state.residual), residual)) << up;
  }
}

TEST(HostReplica, RefusesADeltaThatIsNotFiniteWithItsPlace) {
  const v1::RunConfig config = RunWith("codec_up: INT4");
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  std::vector<float> local(static_cast<size_t>(plan.arena_size()));
  local[static_cast<size_t>(plan.range(1).begin) + 70] = std::numeric_limits<float>::infinity();
  const auto replica = MakeHostReplica(plan, config.sync(), local, {}).value();
  EXPECT_THAT(replica->Snapshot(1).value()->Encode(),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("value 70:"), Not(HasSubstr("counted")))));
}

TEST(HostReplica, RefusesADamagedAnswerWhenItIsStaged) {
  Host host(RunWith("codec_down: INT4"));
  std::vector<uint8_t> shorter = host.answer(0);
  shorter.pop_back();
  EXPECT_THAT(host.replica().StageAnswer(0, shorter), StatusIs(kInvalidArgument));
}

constexpr auto kLeaf = static_cast<int64_t>(kTreeLeafBytes);

// However the bytes are divided, their tree hash comes out, and every byte is accounted for once.
TEST(LeafSinkTest, DividedBytesHashAsWhole) {
  for (const int64_t total : {int64_t{256}, kLeaf, kLeaf + 256, 3 * kLeaf - 512}) {
    std::vector<uint8_t> bytes(static_cast<size_t>(total));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 4096);
    const auto part = [&](int64_t begin, int64_t end) {
      return std::span<const uint8_t>(bytes).subspan(static_cast<size_t>(begin),
                                                     static_cast<size_t>(end - begin));
    };
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{},
                                             {total / 2},
                                             {256, 512, total - 256},
                                             {kLeaf},
                                             {kLeaf - 256},
                                             {kLeaf, 2 * kLeaf},
                                             {kLeaf + 256, kLeaf + 512}}) {
      std::vector<int64_t> bounds = {0};
      for (const int64_t cut : cuts) {
        if (cut > bounds.back() && cut < total) bounds.push_back(cut);
      }
      bounds.push_back(total);
      LeafSink assembly;
      int64_t covered = 0;
      for (size_t i = 0; i + 1 < bounds.size(); ++i) {
        const LeafRanges ranges(bounds[i], bounds[i + 1], total);
        for (int64_t leaf = ranges.first_leaf; leaf < ranges.first_leaf + ranges.leaves; ++leaf) {
          const int64_t end = std::min((leaf + 1) * kLeaf, total);
          assembly.SetLeaf(leaf, Checksum64(part(leaf * kLeaf, end)));
          covered += end - leaf * kLeaf;
        }
        for (const LeafRanges::Range& range : ranges.shared) {
          assembly.AddShared(range.begin, part(range.begin, range.end));
          covered += range.end - range.begin;
        }
      }
      EXPECT_EQ(covered, total);
      EXPECT_EQ(assembly.Root(total).value(), TreeHash(std::span<const uint8_t>(bytes)));
    }
  }
}

TEST(LeafSinkTest, WhatAnotherProcessSaysBeyondTheFragmentIsRefused) {
  const auto root = [](absl::string_view text) {
    v1::SiteLeaves leaves;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(std::string(text), &leaves)) << text;
    LeafSink sink;
    sink.Take(leaves);
    return sink.Root(kLeaf + 256).status();
  };
  EXPECT_EQ(root("numbers: 0 checksums: 1 numbers: 1 checksums: 2"), absl::OkStatus());
  for (const char* text :
       {"numbers: -1 checksums: 1", "numbers: 2 checksums: 1", "numbers: 0", "checksums: 1",
        "offsets: -1 shared: 'a'", "offsets: 1048833 shared: 'a'", "offsets: 1048831 shared: 'ab'",
        "offsets: 0", "shared: 'a'"}) {
    EXPECT_THAT(root(text), StatusIs(kDataLoss, HasSubstr("beyond the fragment"))) << text;
  }
}

TEST(LeafSinkTest, WhoHasAllBytesSharesNone) {
  const LeafRanges ranges(0, 3 * kLeaf - 256, 3 * kLeaf - 256);
  EXPECT_EQ(ranges.first_leaf, 0);
  EXPECT_EQ(ranges.leaves, 3);
  EXPECT_TRUE(ranges.shared.empty());
}

}  // namespace
}  // namespace causeway::worker
