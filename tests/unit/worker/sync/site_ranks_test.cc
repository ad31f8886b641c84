#include "worker/sync/site_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "common/params/run_config.h"
#include "tests/unit/common/base/status_is.h"
#include "worker/sync/host_part.h"

namespace causeway::worker {
namespace {

using ::testing::Each;
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

TEST(RanksTest, AnErrorOfAnotherRankComesWithItsName) {
  const Ranks ranks;
  SiteLinks here(0, 2);
  SiteLinks there(1, 2);
  const auto carry = [](SiteLinks& from, SiteLinks& to) {
    return std::thread([&] {
      while (auto message = from.NextOutgoing()) {
        EXPECT_TRUE(to.TakeIncoming({from.rank(), std::move(message->bytes)}).ok());
      }
    });
  };
  std::thread out = carry(here, there);
  std::thread back = carry(there, here);
  bool fails = false;
  const auto share =
      HostShare::Create(*ranks.plan, *ranks.shards, 1, ranks.config.sync(), {}).value();
  auto follower = FollowingRank::Open(there, *ranks.plan, *ranks.shards, ranks.config.sync(),
                                      [&]() -> absl::StatusOr<std::unique_ptr<ReplicaPart>> {
                                        if (fails)
                                          return absl::ResourceExhaustedError("there is no memory");
                                        return share->MakePart();
                                      })
                      .value();
  const auto own =
      HostShare::Create(*ranks.plan, *ranks.shards, 0, ranks.config.sync(), {}).value();
  auto leader = std::make_unique<LeadingRank>(here, *ranks.plan, *ranks.shards, ranks.config.sync(),
                                              [&] { return own->MakePart(); });
  EXPECT_TRUE(leader->MakeReplica().ok());
  EXPECT_TRUE(leader->Settle().ok());
  fails = true;
  EXPECT_THAT(leader->MakeReplica(),
              StatusIs(kResourceExhausted, HasSubstr("rank 1 of this site: there is no memory")));
  follower.reset();
  EXPECT_THAT(leader->Settle(), StatusIs(kAborted, HasSubstr("rank 1 of this site is lost")));
  leader.reset();
  out.join();
  back.join();
}

}  // namespace
}  // namespace causeway::worker
