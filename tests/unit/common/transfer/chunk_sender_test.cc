#include "common/transfer/chunk_sender.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;

constexpr auto kChunk = static_cast<int64_t>(kChunkBytes);

class ChunkSenderTest : public ::testing::Test {
 protected:
  explicit ChunkSenderTest(ChunkSender::Options options = {}) : sender_(options) {}

  void Add(uint64_t transfer, int64_t chunks, int64_t due_step = 0) {
    sender_.Add(transfer, due_step, ChunkSet(chunks * kChunk), false);
  }
  // As (transfer, chunk); (0, 0): there is nothing.
  std::pair<uint64_t, int64_t> Take(int64_t lane) {
    const std::optional<ChunkSender::Piece> piece = sender_.Take(lane, now_);
    return piece.has_value() ? std::pair(piece->transfer, piece->chunk)
                             : std::pair(uint64_t{0}, int64_t{0});
  }
  // Chunks that the lane takes until there is nothing, introductions left out.
  std::vector<std::pair<uint64_t, int64_t>> TakeAll(int64_t lane) {
    std::vector<std::pair<uint64_t, int64_t>> all;
    while (const auto piece = sender_.Take(lane, now_)) {
      if (piece->chunk != ChunkSender::kIntroduction)
        all.emplace_back(piece->transfer, piece->chunk);
    }
    return all;
  }
  size_t Acknowledge(int64_t lane, int64_t chunks) {
    return sender_.Acknowledge(lane, chunks, now_).value().size();
  }
  static std::string Bits(int64_t chunks, const std::vector<int64_t>& held) {
    ChunkSet set(chunks * kChunk);
    for (const int64_t chunk : held) set.Add(chunk);
    return set.ToWire();
  }

  ChunkSender sender_;
  absl::Duration now_ = absl::Seconds(100);
};

TEST_F(ChunkSenderTest, EveryLaneIntroducesAnObjectBeforeItsFirstChunkThere) {
  sender_.Open(1, now_);
  sender_.Open(2, now_);
  Add(7, 3);
  EXPECT_EQ(Take(1), std::pair(uint64_t{7}, ChunkSender::kIntroduction));
  EXPECT_EQ(Take(1), std::pair(uint64_t{7}, int64_t{0}));
  EXPECT_EQ(Take(2), std::pair(uint64_t{7}, ChunkSender::kIntroduction));
  EXPECT_EQ(Take(2), std::pair(uint64_t{7}, int64_t{1}));
  EXPECT_EQ(Take(2), std::pair(uint64_t{7}, int64_t{2}));
  EXPECT_EQ(Take(1), std::pair(uint64_t{0}, int64_t{0}));
  EXPECT_FALSE(sender_.delivered(7));
  EXPECT_EQ(Acknowledge(1, 1), 1u);
  EXPECT_EQ(Acknowledge(2, 2), 2u);
  EXPECT_TRUE(sender_.delivered(7));
}

TEST_F(ChunkSenderTest, WhatIsDueFirstGoesFirstAndOfEqualsTheOlder) {
  sender_.Open(1, now_);
  Add(1, 2, 50);
  Add(2, 1, 10);
  Add(3, 1, 50);
  EXPECT_THAT(TakeAll(1),
              ElementsAre(std::pair(2, 0), std::pair(1, 0), std::pair(1, 1), std::pair(3, 0)));
}

class RepeatingSenderTest : public ChunkSenderTest {
 protected:
  RepeatingSenderTest() : ChunkSenderTest({.repeats_introductions = true}) {}
};

TEST_F(RepeatingSenderTest, ALaneThatBreaksAtAnyChunkLeavesWhatIsNotHeld) {
  for (int64_t acknowledged = 0; acknowledged <= 4; ++acknowledged) {
    const int64_t first = 2 * acknowledged;
    const int64_t second = first + 1;
    const auto transfer = static_cast<uint64_t>(7 + acknowledged);
    sender_.Open(first, now_);
    sender_.Open(second, now_);
    Add(transfer, 4);
    EXPECT_EQ(TakeAll(first).size(), 4u);
    EXPECT_EQ(static_cast<int64_t>(Acknowledge(first, acknowledged)), acknowledged);
    EXPECT_EQ(sender_.Close(first), 4 - acknowledged);
    EXPECT_EQ(Take(second).second, ChunkSender::kIntroduction) << "though no chunk may be left";
    EXPECT_TRUE(TakeAll(second).empty()) << "they may have come, though nobody said so";
    std::vector<int64_t> held = {3};
    for (int64_t chunk = 0; chunk < acknowledged; ++chunk) held.push_back(chunk);
    EXPECT_TRUE(sender_.Hold(transfer, Bits(4, held), 0).ok());
    const auto again = TakeAll(second);
    ASSERT_EQ(std::ssize(again), std::max<int64_t>(0, 3 - acknowledged));
    for (const auto& piece : again) EXPECT_GE(piece.second, acknowledged);
    EXPECT_EQ(std::ssize(again), static_cast<int64_t>(Acknowledge(second, std::ssize(again))));
    EXPECT_TRUE(sender_.delivered(transfer));
    sender_.Remove(transfer);
    sender_.Close(second);
  }
}

TEST_F(ChunkSenderTest, AnObjectThatMayBeHeldIsAskedForFirst) {
  sender_.Open(1, now_);
  sender_.Add(7, 0, ChunkSet(4 * kChunk), /*ask_first=*/true);
  EXPECT_FALSE(sender_.waiting());
  EXPECT_EQ(Take(1).second, ChunkSender::kIntroduction);
  EXPECT_TRUE(TakeAll(1).empty());
  EXPECT_EQ(sender_.Hold(7, Bits(4, {0, 2}), 5).value(), 2);
  EXPECT_THAT(TakeAll(1), ElementsAre(std::pair(7, 1), std::pair(7, 3)));
}

TEST_F(ChunkSenderTest, AnotherHolderHasLostWhatWasAcknowledged) {
  sender_.Open(1, now_);
  Add(7, 3);
  EXPECT_TRUE(sender_.Hold(7, "", 5).ok());
  EXPECT_EQ(TakeAll(1).size(), 3u);
  EXPECT_EQ(Acknowledge(1, 2), 2u);
  EXPECT_TRUE(sender_.Hold(7, "", 5).ok());
  EXPECT_TRUE(TakeAll(1).empty()) << "the answer crossed the acknowledgements";
  EXPECT_TRUE(sender_.Hold(7, Bits(3, {1}), 6).ok());
  EXPECT_THAT(TakeAll(1), ElementsAre(std::pair(7, 0)));
}

TEST_F(ChunkSenderTest, ADamagedChunkGoesAgainAndItsAcknowledgementDoesNotCount) {
  sender_.Open(1, now_);
  Add(7, 2);
  EXPECT_EQ(TakeAll(1).size(), 2u);
  EXPECT_EQ(sender_.Damaged(1, 7, 0), 1);
  EXPECT_EQ(sender_.Damaged(1, 7, 0), 0) << "it was damaged once";
  EXPECT_EQ(sender_.Damaged(1, 7, 9), 0) << "it was not sent";
  EXPECT_EQ(Acknowledge(1, 1), 0u);
  EXPECT_THAT(TakeAll(1), ElementsAre(std::pair(7, 0)));
  EXPECT_EQ(sender_.Damaged(1, 7, 0), 2) << "in a row";
  EXPECT_EQ(Acknowledge(1, 2), 1u);
  EXPECT_THAT(TakeAll(1), ElementsAre(std::pair(7, 0)));
  EXPECT_EQ(sender_.Damaged(1, 7, 0), 1) << "there was progress";
}

TEST_F(ChunkSenderTest, HostileMessagesAreRefused) {
  sender_.Open(1, now_);
  Add(7, 2);
  EXPECT_EQ(TakeAll(1).size(), 2u);
  EXPECT_FALSE(sender_.Acknowledge(1, 3, now_).ok());
  EXPECT_FALSE(sender_.Acknowledge(1, -1, now_).ok());
  EXPECT_EQ(Acknowledge(1, 1), 1u);
  EXPECT_FALSE(sender_.Acknowledge(1, 0, now_).ok());
  EXPECT_FALSE(sender_.Hold(7, "\x7f", 0).ok());
  EXPECT_EQ(sender_.Hold(8, "\x7f", 0).value(), 0);
}

TEST_F(ChunkSenderTest, ALaneOwesFromItsFirstChunkOn) {
  const auto stalled = [&](int64_t lane) { return sender_.Stalled(lane, now_, absl::Seconds(30)); };
  sender_.Open(1, now_);
  now_ += absl::Minutes(5);
  Add(7, 3);
  EXPECT_EQ(TakeAll(1).size(), 3u);
  EXPECT_FALSE(stalled(1));
  now_ += absl::Seconds(30);
  EXPECT_FALSE(stalled(1));
  now_ += absl::Seconds(1);
  EXPECT_TRUE(stalled(1));
  EXPECT_EQ(Acknowledge(1, 1), 1u);
  EXPECT_FALSE(stalled(1));
  now_ += absl::Seconds(20);
  EXPECT_EQ(Acknowledge(1, 3), 2u);
  now_ += absl::Minutes(5);
  EXPECT_FALSE(stalled(1)) << "it rests";
}

TEST_F(ChunkSenderTest, ASlowLinkIsNoStandingLane) {
  const auto stalled = [&] { return sender_.Stalled(1, now_, absl::Seconds(30)); };
  sender_.Open(1, now_);
  Add(7, 1);
  EXPECT_EQ(TakeAll(1).size(), 1u);
  sender_.Open(2, now_);
  Add(8, 20);
  EXPECT_EQ(TakeAll(2).size(), 20u);
  for (int64_t chunk = 1; chunk <= 7; ++chunk) {
    now_ += absl::Seconds(29);
    EXPECT_EQ(Acknowledge(2, chunk), 1u);
    EXPECT_FALSE(stalled()) << "a chunk in half a minute: no lane is better off";
  }
  EXPECT_EQ(Acknowledge(2, 8), 1u);
  EXPECT_TRUE(stalled()) << "the other one brought eight meanwhile";
}

class LimitedSenderTest : public ChunkSenderTest {
 protected:
  LimitedSenderTest() : ChunkSenderTest({.max_bytes_per_second = kChunk}) {}
};

TEST_F(LimitedSenderTest, ALimitedRateIsKeptOverAllLanes) {
  sender_.Open(1, now_);
  sender_.Open(2, now_);
  Add(7, 20);
  const absl::Duration begin = now_;
  int chunks = 0;
  while (!sender_.delivered(7)) {
    for (const int64_t lane : {1, 2}) chunks += static_cast<int>(TakeAll(lane).size());
    for (const int64_t lane : {1, 2}) {
      for (int64_t n = 20; n >= 0; --n) {
        if (sender_.Acknowledge(lane, n, now_).ok()) break;
      }
    }
    now_ += absl::Milliseconds(50);
  }
  EXPECT_EQ(chunks, 20);
  EXPECT_GE(now_ - begin, absl::Seconds(18));
  EXPECT_LE(now_ - begin, absl::Seconds(21));
}

}  // namespace
}  // namespace causeway
