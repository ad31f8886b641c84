#include "worker/link/chunk_ledger.h"

#include "common/rpc/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kBytes = 3 * static_cast<int64_t>(kChunkBytes) + 5;  // Four chunks.

std::vector<int64_t> TakeAll(ChunkLedger& ledger) {
  std::vector<int64_t> chunks;
  while (ledger.waiting()) chunks.push_back(ledger.Take());
  return chunks;
}

TEST(ChunkLedgerTest, ChunksAreTakenOnceAndInOrder) {
  ChunkLedger ledger(kBytes, false);
  EXPECT_THAT(TakeAll(ledger), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(ledger.Take(), -1);
  EXPECT_FALSE(ledger.doubtful());
}

TEST(ChunkLedgerTest, OnlyWhatABrokenLaneHadAndTheCoordinatorLacksWaitsAgain) {
  ChunkLedger ledger(kBytes, false);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(ledger.Give(ledger.Take(), i % 2));
  EXPECT_EQ(ledger.Doubt(0), 2);  // Chunks 0 and 2.
  EXPECT_TRUE(ledger.doubtful());
  EXPECT_FALSE(ledger.waiting()) << "nobody knows yet";
  ChunkSet held(kBytes);
  held.Add(0);
  ledger.Resolve(held);
  EXPECT_FALSE(ledger.doubtful());
  EXPECT_THAT(TakeAll(ledger), ElementsAre(2)) << "lane 1 still has chunks 1 and 3";
  EXPECT_FALSE(ledger.Give(2, 1)) << "it was sent before";
  EXPECT_EQ(ledger.Doubt(1), 3);
}

TEST(ChunkLedgerTest, AnObjectThatMayBeHeldWaitsForTheCoordinatorsWord) {
  ChunkLedger ledger(kBytes, true);
  EXPECT_FALSE(ledger.waiting());
  EXPECT_TRUE(ledger.doubtful());
  ChunkSet held(kBytes);
  held.Add(1);
  ledger.Resolve(held);
  EXPECT_THAT(TakeAll(ledger), ElementsAre(0, 2, 3));
}

TEST(ChunkLedgerTest, AChunkThatWaitsAgainGoesBeforeLaterOnes) {
  ChunkLedger ledger(kBytes, false);
  ledger.Give(ledger.Take(), 0);
  ledger.Give(ledger.Take(), 1);
  EXPECT_EQ(ledger.Doubt(0), 1);
  ledger.Resolve(ChunkSet(kBytes));
  EXPECT_THAT(TakeAll(ledger), ElementsAre(0, 2, 3));
}

}  // namespace
}  // namespace causeway::worker
