#include "common/transfer/chunk_message.h"

#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

constexpr auto kSetChunk = static_cast<int64_t>(kChunkBytes);

TEST(ChunkSet, CountsTheBytesOfWhateverOrder) {
  ChunkSet set(3 * kSetChunk + 5);
  EXPECT_EQ(set.chunks(), 4);
  EXPECT_TRUE(set.Add(3));
  EXPECT_FALSE(set.Add(3));
  EXPECT_EQ(set.held_bytes(), 5);
  EXPECT_TRUE(set.Add(1));
  EXPECT_EQ(set.held_bytes(), kSetChunk + 5);
  EXPECT_EQ(set.FirstMissing(), 0);
  EXPECT_EQ(set.FirstMissing(1), 2);
  EXPECT_EQ(set.FirstMissing(3), 4);
  EXPECT_TRUE(set.Remove(3));
  EXPECT_FALSE(set.Remove(3));
  EXPECT_EQ(set.FirstMissing(3), 3);
  for (const int64_t chunk : {0, 2, 3}) EXPECT_TRUE(set.Add(chunk));
  EXPECT_TRUE(set.complete());
  EXPECT_EQ(set.held_bytes(), set.object_bytes());
}

TEST(ChunkSet, OfAnObjectWithoutBytesIsComplete) {
  const ChunkSet set(0);
  EXPECT_TRUE(set.complete());
  EXPECT_EQ(set.FirstMissing(), 0);
  EXPECT_EQ(set.ToWire(), "");
}

TEST(ChunkSet, SkipsWholeWordsOfHeldChunks) {
  ChunkSet set(200 * kSetChunk);
  for (int64_t chunk = 0; chunk < 199; ++chunk) set.Add(chunk);
  EXPECT_EQ(set.FirstMissing(), 199);
  set.Add(199);
  EXPECT_EQ(set.FirstMissing(), 200);
}

TEST(ChunkSet, CrossesAsBitsWithoutTrailingZeroBytes) {
  ChunkSet set(100 * kSetChunk);
  EXPECT_EQ(set.ToWire(), "");
  set.Add(0);
  set.Add(9);
  EXPECT_EQ(set.ToWire(), std::string("\x01\x02", 2));
  set.Add(99);
  EXPECT_EQ(set.ToWire().size(), 13u);
  const auto again = ChunkSet::FromWire(100 * kSetChunk, set.ToWire()).value();
  EXPECT_EQ(again.held_bytes(), 3 * kSetChunk);
  for (int64_t chunk = 0; chunk < 100; ++chunk) {
    EXPECT_EQ(again.Holds(chunk), set.Holds(chunk)) << chunk;
  }
}

TEST(ChunkSet, BitsBeyondTheObjectAreRefused) {
  EXPECT_TRUE(ChunkSet::FromWire(8 * kSetChunk, "\xff").ok());
  EXPECT_TRUE(ChunkSet::FromWire(7 * kSetChunk + 1, "\xff").ok());
  for (const int64_t bytes : {7 * kSetChunk, int64_t{1}, int64_t{0}}) {
    EXPECT_EQ(ChunkSet::FromWire(bytes, "\xff").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  // More bytes than chunks need, even if they say nothing.
  EXPECT_FALSE(ChunkSet::FromWire(8 * kSetChunk, std::string(2, '\0')).ok());
  EXPECT_FALSE(ChunkSet::FromWire(8 * kSetChunk, std::string(1 << 20, '\0')).ok());
  EXPECT_FALSE(ChunkSet::FromWire(-1, "").ok());
  EXPECT_FALSE(ChunkSet::FromWire(kMaxObjectBytes + 1, "").ok());
  EXPECT_TRUE(ChunkSet::FromWire(kMaxObjectBytes, "").ok());
}

}  // namespace
}  // namespace causeway
