#include "worker/sync/shard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/codec/codec.h"
#include "common/params/run_config.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

constexpr auto kChunk = static_cast<int64_t>(kCodecChunk);

FragmentPlan PlanOf(const std::string& model, const std::string& sync) {
  v1::RunConfig config = ParseRunConfig("model { vocabulary_size: 256 sequence_length: 8 " + model +
                                            " } train { steps: 100 } sync { " + sync + " }",
                                        "test")
                             .value();
  EXPECT_TRUE(CompleteRunConfig(config).ok());
  return FragmentPlan::Create(config).value();
}

std::vector<FragmentPlan> SomePlans() {
  std::vector<FragmentPlan> plans;
  const std::string models[] = {"layers: 3 width: 16 heads: 2 mlp_width: 24",
                                "layers: 4 width: 64 heads: 2 mlp_width: 192 untied_head: true"};
  for (const std::string& model : models) {
    for (const char* const sync :
         {"fragments: 1 steps_between_syncs: 12", "fragments: 3 steps_between_syncs: 12",
          "fragments: 2 pattern: SEQUENTIAL steps_between_syncs: 12",
          "fragments: 3 pattern: BALANCED steps_between_syncs: 12"}) {
      plans.push_back(PlanOf(model, sync));
    }
  }
  return plans;
}

// Pieces are whole chunks, so that what the ranks encode, one after the other, is what one device
// would have encoded.
TEST(ShardPlanTest, EveryValueHasOneOwnerInPiecesOfWholeCodecChunksOfTheirFragment) {
  for (const FragmentPlan& plan : SomePlans()) {
    for (const int ranks : {1, 2, 3, 5, 8, 64}) {
      for (const int64_t least : {int64_t{1}, kChunk, int64_t{3} * kChunk, int64_t{1} << 40}) {
        const ShardPlan shards(plan, ranks, least);
        std::map<int64_t, int64_t> ends;  // Ends of pieces, by where they begin.
        for (int rank = 0; rank < ranks; ++rank) {
          int64_t offset = 0;
          for (const ShardPiece& piece : shards.pieces(rank)) {
            EXPECT_TRUE(ends.emplace(piece.begin, piece.end).second);
            EXPECT_EQ(piece.offset, offset);
            offset += piece.size();
            const FragmentRange& range = plan.range(piece.fragment);
            EXPECT_EQ((piece.begin - range.begin) % kChunk, 0);
            EXPECT_GE(piece.begin, range.begin);
            EXPECT_LE(piece.end, range.end);
            EXPECT_TRUE(piece.end == range.end || piece.size() % kChunk == 0);
            const ShardBucket& bucket = shards.buckets()[static_cast<size_t>(piece.bucket)];
            EXPECT_EQ(bucket.fragment, piece.fragment);
            EXPECT_EQ(bucket.bounds[static_cast<size_t>(rank)], piece.begin);
            EXPECT_EQ(bucket.bounds[static_cast<size_t>(rank) + 1], piece.end);
          }
          EXPECT_EQ(shards.shard_size(rank), offset);
          int64_t of_fragments = 0;
          for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
            for (const ShardPiece& piece : shards.pieces(rank, fragment)) {
              EXPECT_EQ(piece.fragment, fragment);
            }
            of_fragments += shards.shard_size(rank, fragment);
          }
          EXPECT_EQ(of_fragments, offset);
        }
        int64_t next = 0;
        for (const auto& [begin, end] : ends) {
          EXPECT_EQ(begin, next);
          EXPECT_GT(end, begin);
          next = end;
        }
        EXPECT_EQ(next, plan.arena_size());
      }
    }
  }
}

TEST(ShardPlanTest, ABucketIsNotReadyBeforeAllOfItsGradients) {
  for (const FragmentPlan& plan : SomePlans()) {
    const ShardPlan shards(plan, 2, kChunk);
    int layers = 0;
    for (const PlacedTensor& tensor : plan.tensors()) {
      layers = std::max(layers, tensor.info.block + 1);
    }
    EXPECT_EQ(shards.stages(), layers + 2);
    for (const ShardBucket& bucket : shards.buckets()) {
      EXPECT_LT(bucket.stage, shards.stages());
      for (const PlacedTensor& tensor : plan.tensors()) {
        if (tensor.offset < bucket.end() && tensor.offset + tensor.info.size() > bucket.begin()) {
          EXPECT_GE(bucket.stage, ReadyStage(tensor.info, layers)) << tensor.info.name;
        }
      }
    }
    EXPECT_TRUE(std::ranges::is_sorted(shards.buckets(), {}, &ShardBucket::stage));
  }
}

TEST(ShardPlanTest, TheHeadIsReadyFirstAndTheEmbeddingLast) {
  const FragmentPlan plan =
      PlanOf("layers: 2 width: 64 heads: 2 mlp_width: 192 untied_head: true", "fragments: 1");
  const ShardPlan shards(plan, 1, /*least_bucket=*/1);
  std::vector<int> stages;
  for (const ShardBucket& bucket : shards.buckets()) stages.push_back(bucket.stage);
  EXPECT_THAT(stages, ElementsAre(0, 1, 2, 3));
  const auto owner = [&](const char* name) {
    const PlacedTensor* const tensor = plan.Find(name);
    for (const ShardBucket& bucket : shards.buckets()) {
      const int64_t middle = tensor->offset + tensor->info.size() / 2;
      if (bucket.begin() <= middle && middle < bucket.end()) return bucket.stage;
    }
    return -1;
  };
  EXPECT_EQ(owner("lm_head.weight"), 0);
  EXPECT_EQ(owner("model.layers.1.mlp.up_proj.weight"), 1);
  EXPECT_EQ(owner("model.layers.0.mlp.up_proj.weight"), 2);
  EXPECT_EQ(owner("model.embed_tokens.weight"), 3);
}

TEST(ShardPlanTest, ATiedEmbeddingWaitsForTheEndOfBackward) {
  const FragmentPlan plan = PlanOf("layers: 2 width: 64 heads: 2 mlp_width: 192", "fragments: 1");
  EXPECT_EQ(ReadyStage(plan.Find("model.embed_tokens.weight")->info, 2), 3);
}

TEST(ShardPlanTest, SmallBucketsAreJoined) {
  const FragmentPlan plan = PlanOf("layers: 4 width: 64 heads: 2 mlp_width: 192", "fragments: 1");
  EXPECT_GT(ShardPlan(plan, 2, 1).buckets().size(), 3);
  const ShardPlan joined(plan, 2, plan.arena_size());
  ASSERT_EQ(joined.buckets().size(), 1);
  EXPECT_EQ(joined.buckets()[0].stage, joined.stages() - 1);
  const int64_t least = plan.arena_size() / 3;
  const ShardPlan some(plan, 2, least);
  for (const ShardBucket& bucket : some.buckets()) {
    EXPECT_GE(bucket.end() - bucket.begin(), least - 2 * kChunk);  // Borders move a little.
  }
}

TEST(ShardPlanTest, BucketsButTheLastOfAFragmentHaveEqualPieces) {
  const FragmentPlan plan =
      PlanOf("layers: 6 width: 128 heads: 2 mlp_width: 512 untied_head: true", "fragments: 2");
  for (const int ranks : {2, 3, 4}) {
    const ShardPlan shards(plan, ranks, 1);
    for (const ShardBucket& bucket : shards.buckets()) {
      if (bucket.end() == plan.range(bucket.fragment).end) continue;
      for (size_t i = 0; i + 1 < bucket.bounds.size(); ++i) {
        EXPECT_EQ(bucket.bounds[i + 1] - bucket.bounds[i], (bucket.end() - bucket.begin()) / ranks);
      }
    }
  }
}

TEST(ShardPlanTest, MoreRanksThanChunksLeaveSomeWithoutPieces) {
  const FragmentPlan plan = PlanOf("layers: 1 width: 16 heads: 2 mlp_width: 24", "fragments: 1");
  const ShardPlan shards(plan, 100);
  EXPECT_EQ(shards.shard_size(0), 0);
  EXPECT_TRUE(shards.pieces(0).empty());
  EXPECT_TRUE(shards.pieces(0, 0).empty());
  EXPECT_EQ(shards.shard_size(0, 0), 0);
}

}  // namespace
}  // namespace causeway::worker
