#include "worker/sync/site_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/params/run_config.h"
#include "tests/unit/common/base/status_is.h"
#include "worker/sync/host_part.h"
#include "worker/sync/site_backend.h"

namespace causeway::worker {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::SiteFrame FrameOf(uint64_t id) {
  v1::SiteFrame frame;
  frame.set_kind(v1::SiteFrame::CALL);
  frame.set_id(id);
  return frame;
}

TEST(SiteLinksTest, MessagesKeepTheirOrderAndAnEndIsOne) {
  SiteLinks leader(0, 3);
  SiteLinks follower(2, 3);
  const auto to = leader.Stream(2);
  const auto from = follower.Stream(0);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(to->Write(FrameOf(id)).ok());
  to->CloseWrites();
  EXPECT_THAT(to->Write(FrameOf(4)), StatusIs(kUnavailable));
  for (int i = 0; i < 4; ++i) {
    const auto message = leader.NextOutgoing();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->rank, 2);
    EXPECT_EQ(message->bytes.empty(), i == 3);
    EXPECT_TRUE(follower.TakeIncoming({0, message->bytes}).ok());
  }
  v1::SiteFrame frame;
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_TRUE(from->Read(frame).ok());
    EXPECT_EQ(frame.id(), id);
  }
  EXPECT_THAT(from->Read(frame), StatusIs(kUnavailable));
}

TEST(SiteLinksTest, NothingMoreComesOnceAllEndsAreClosed) {
  SiteLinks links(0, 3);
  links.Stream(1)->Cut();
  EXPECT_EQ(links.NextOutgoing()->rank, 1);
  std::thread closes([&] { links.Close(); });
  EXPECT_EQ(links.NextOutgoing()->rank, 2);
  EXPECT_FALSE(links.NextOutgoing().has_value());
  closes.join();
  v1::SiteFrame frame;
  EXPECT_THAT(links.Stream(2)->Read(frame), StatusIs(kUnavailable));
}

TEST(SiteLinksTest, WhatIsNoMessageIsRefused) {
  SiteLinks links(1, 3);
  for (const int rank : {-1, 1, 2, 3}) {
    EXPECT_THAT(links.TakeIncoming({rank, ""}), StatusIs(kInvalidArgument, HasSubstr("no link")));
  }
  EXPECT_THAT(links.TakeIncoming({0, "\xff\xff"}),
              StatusIs(kInvalidArgument, HasSubstr("whole and in order")));
}

// A run of two tensors, in one fragment.
struct Ranks {
  Ranks() {
    config = ParseRunConfig(R"(tensors { tensor { name: "a" shape: [9000] }
                                         tensor { name: "b" shape: [9000] } }
                               sync { fragments: 1 steps_between_syncs: 10 codec_down: FP32 })",
                            "test")
                 .value();
    EXPECT_TRUE(CompleteRunConfig(config).ok());
    plan.emplace(FragmentPlan::Create(config).value());
    shards.emplace(*plan, 2, std::vector<OwnedRange>{{0, 9000, 0}, {9024, 18024, 1}});
  }
  v1::RunConfig config;
  std::optional<FragmentPlan> plan;
  std::optional<ShardPlan> shards;
};

TEST(HostShareTest, WhatNobodyTrainsIsWhatIsPublished) {
  const Ranks ranks;
  const auto share =
      HostShare::Create(*ranks.plan, *ranks.shards, 1, ranks.config.sync(), {{17'000, 18'000}})
          .value();
  EXPECT_THAT(share->published(), StatusIs(kFailedPrecondition)) << "nothing is made yet";
  const auto part = share->MakePart().value();
  std::vector<float> values(static_cast<size_t>(ranks.plan->arena_size()), 2);
  ASSERT_TRUE(
      part->Do({.method = kPartSetPublished, .fragment = 0, .in = worker::BytesOf(values)}).ok());
  const std::span<float> local = share->arena().subspan(17'000, 1000);
  ASSERT_TRUE(part->Snapshot(0).ok());
  EXPECT_THAT(local, Each(2));
  // As before the answer, and then mixed.
  std::vector<float> answer(values.size(), 6);
  ASSERT_TRUE(
      part->Do({.method = kPartMerge, .fragment = 0, .alpha = 0.5F, .in = worker::BytesOf(answer)})
          .ok());
  const std::span<const float> published = share->published().value();
  EXPECT_THAT(published.subspan(17'000, 1000), Each(published[17'000]));
  EXPECT_FLOAT_EQ(local[0], 0.5F * 2 + 0.5F * published[17'000]);
  EXPECT_EQ(share->arena()[16'999], 0.5F * published[16'999]);
  EXPECT_EQ(share->arena()[0], 0) << "another rank's";
}

// A part elsewhere, which writes down when it is asked and when it is awaited.
class AskedPart final : public ReplicaPart {
 public:
  AskedPart(std::string name, std::vector<std::string>& order, absl::Status answer)
      : name_(std::move(name)), order_(order), answer_(std::move(answer)) {}

  absl::StatusOr<std::unique_ptr<Codes>> Snapshot(int /*fragment*/) override { return nullptr; }
  absl::Status Do(const PartCall& /*call*/) override {
    order_.push_back(name_ + " does");
    return answer_;
  }
  absl::StatusOr<Rest> Begin(const PartCall& call) override {
    if (name_ == "own") return ReplicaPart::Begin(call);
    order_.push_back(name_ + " asked");
    return [this] {
      order_.push_back(name_ + " awaited");
      return answer_;
    };
  }
  absl::Status FinishHash(int /*fragment*/, LeafSink& /*leaves*/) override { return answer_; }
  bool KeepsResiduals() const override { return false; }

 private:
  const std::string name_;
  std::vector<std::string>& order_;
  const absl::Status answer_;
};

TEST(PartsOfReplicaTest, AllPartsAreAskedBeforeAnyIsAwaited) {
  const Ranks ranks;
  std::vector<std::string> order;
  std::vector<std::unique_ptr<ReplicaPart>> parts;
  const auto add = [&](const std::string& name, const absl::Status& answer) {
    parts.push_back(std::make_unique<AskedPart>(name, order, answer));
  };
  add("own", absl::OkStatus());
  add("one", absl::InternalError("of one"));
  add("two", absl::OkStatus());
  Replica replica(*ranks.plan, ranks.config.sync(), std::move(parts));
  EXPECT_THAT(replica.Mix(0, 0.5F), StatusIs(kInternal, "of one"));
  EXPECT_THAT(order,
              ElementsAre("two asked", "one asked", "own does", "two awaited", "one awaited"));
}

class RanksTest : public ::testing::Test {
 protected:
  RanksTest() {
    follower_ =
        FollowingRank::Open(there_, *ranks_.plan, *ranks_.shards, ranks_.config.sync(), [this] {
          return MakePart();
        }).value();
    leader_ =
        std::make_unique<LeadingRank>(here_, *ranks_.plan, *ranks_.shards, ranks_.config.sync(),
                                      [this] { return own_->MakePart(); });
  }
  ~RanksTest() override {
    follower_.reset();
    leader_.reset();
    out_.join();
    back_.join();
  }

  std::thread Carry(SiteLinks& from, SiteLinks& to) {
    return std::thread([&] {
      while (auto message = from.NextOutgoing()) {
        carried_.fetch_add(message->bytes.size());
        EXPECT_TRUE(to.TakeIncoming({from.rank(), std::move(message->bytes)}).ok());
      }
    });
  }

  // Of rank 1.
  absl::StatusOr<std::unique_ptr<ReplicaPart>> MakePart() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](bool* hangs) { return !*hangs; }, &hangs_));
    if (fails_) return absl::ResourceExhaustedError("there is no memory");
    return share_->MakePart();
  }

  const Ranks ranks_;
  const std::unique_ptr<HostShare> own_ = Share(0);
  const std::unique_ptr<HostShare> share_ = Share(1);
  absl::Mutex mutex_;
  bool hangs_ = false;
  bool fails_ = false;
  std::atomic<size_t> carried_ = 0;  // Bytes of messages.
  SiteLinks here_ = SiteLinks(0, 2);
  SiteLinks there_ = SiteLinks(1, 2);
  std::thread out_ = Carry(here_, there_);
  std::thread back_ = Carry(there_, here_);
  std::unique_ptr<FollowingRank> follower_;
  std::unique_ptr<LeadingRank> leader_;

 private:
  std::unique_ptr<HostShare> Share(int rank) {
    return HostShare::Create(*ranks_.plan, *ranks_.shards, rank, ranks_.config.sync(), {}).value();
  }
};

TEST_F(RanksTest, AnErrorOfAnotherRankComesWithItsName) {
  EXPECT_TRUE(leader_->MakeReplica().ok());
  EXPECT_TRUE(leader_->Settle().ok());
  fails_ = true;
  EXPECT_THAT(leader_->MakeReplica(),
              StatusIs(kResourceExhausted, HasSubstr("rank 1 of this site: there is no memory")));
  follower_.reset();
  EXPECT_THAT(leader_->Settle(), StatusIs(kAborted, HasSubstr("rank 1 of this site is lost")));
}

TEST_F(RanksTest, AWaitForARankThatSaysNothingCanBeEnded) {
  constexpr absl::Duration kPatience = absl::Seconds(20);
  EXPECT_TRUE(leader_->EndSilence(absl::Seconds(0), kPatience).ok());
  EXPECT_TRUE(leader_->EndSilence(absl::Seconds(90), kPatience).ok()) << "nobody waits";
  {
    absl::MutexLock lock(&mutex_);
    hangs_ = true;
  }
  absl::Status made;
  std::thread waits([&] { made = leader_->MakeReplica().status(); });
  // Time passes only here: it ends when the wait has begun and lasted.
  absl::Status ended;
  for (int64_t second = 100; ended.ok(); ++second) {
    ended = leader_->EndSilence(absl::Seconds(second), kPatience);
    std::this_thread::yield();
  }
  waits.join();
  for (const absl::Status& status : {ended, made}) {
    EXPECT_THAT(status, StatusIs(kAborted, HasSubstr("rank 1 of this site has said nothing for")));
  }
  EXPECT_THAT(leader_->Settle(), StatusIs(kAborted, HasSubstr("rank 1"))) << "it stays so";
  absl::MutexLock lock(&mutex_);
  hangs_ = false;
}

TEST_F(RanksTest, WhatLiesBetweenTensorsCrossesAlone) {
  const auto replica = leader_->MakeReplica().value();
  const size_t values = static_cast<size_t>(GapSize(*ranks_.plan, 0));
  ASSERT_EQ(values, 48U) << "24 behind each tensor";
  std::vector<float> set(values);
  std::iota(set.begin(), set.end(), 1.0F);
  const size_t before = carried_;
  ASSERT_TRUE(
      replica->Do({.method = kPartSetGaps, .fragment = 0, .in = worker::BytesOf(set)}).ok());
  std::vector<float> got(values);
  ASSERT_TRUE(
      replica->Do({.method = kPartCopyGaps, .fragment = 0, .out = MutableBytesOf(got)}).ok());
  EXPECT_EQ(got, set);
  EXPECT_LT(carried_ - before, 1000U) << "a share has 36,000 bytes";
  EXPECT_EQ(own_->arena()[9000], 1);
  EXPECT_EQ(share_->arena()[18'047], 48);
}

// Six micro-batches of two windows of eight tokens.
v1::RunConfig SixMicroBatches() {
  v1::RunConfig config = ParseRunConfig(
                             R"(model {
               vocabulary_size: 64 sequence_length: 8 layers: 1 width: 16 heads: 2 mlp_width: 32
             }
             train {
               steps: 100 batch_sequences: 12 micro_batch_sequences: 2 document_masking: true
             })",
                             "test")
                             .value();
  EXPECT_TRUE(CompleteRunConfig(config).ok());
  return config;
}

TEST(StepTokensTest, MicroBatchesAreDealtOutInTurnAndTravel) {
  const v1::RunConfig config = SixMicroBatches();
  StepTokens here(config, /*ranks=*/3, {.first = 1, .count = 2});
  std::vector<int64_t> own;
  for (int64_t i = -1; i <= 6; ++i) {
    if (!here.Has(i)) continue;
    own.push_back(i);
    const MicroBatch at = here.At(i);
    std::ranges::fill(at.inputs, static_cast<int32_t>(i));
    std::ranges::fill(at.targets, static_cast<int32_t>(10 + i));
    std::ranges::fill(at.document_starts, static_cast<int32_t>(20 + i));
  }
  EXPECT_THAT(own, ElementsAre(1, 2, 4, 5));
  StepTokens there(config, 3, {.first = 1, .count = 2});
  ASSERT_TRUE(there.Take(here.bytes()).ok());
  std::vector<int32_t> inputs(16);
  std::vector<int32_t> targets(16);
  std::vector<int32_t> starts(16);
  for (const int32_t i : {5, 1}) {
    ASSERT_TRUE(there.Reader()(i, {inputs, targets, starts}).ok());
    EXPECT_THAT(inputs, Each(i));
    EXPECT_THAT(targets, Each(10 + i));
    EXPECT_THAT(starts, Each(20 + i));
  }
  EXPECT_THAT(there.Reader()(3, {inputs, targets, starts}),
              StatusIs(kInvalidArgument, HasSubstr("micro-batch 3 is none of this process's")));
  EXPECT_THAT(there.Take(ByteBuffer(7)), StatusIs(kInvalidArgument, HasSubstr("bytes; 7 came")));
}

}  // namespace
}  // namespace causeway::worker
