#include "common/base/byte_buffer.h"

#include <thread>

#include "gtest/gtest.h"

namespace causeway {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

// Kept blocks are the process's: every test begins and ends with nothing.
class FreedBlocks : public testing::Test {
 protected:
  FreedBlocks() { KeepFreedBlocks(0); }
  ~FreedBlocks() override { KeepFreedBlocks(0); }
};

TEST_F(FreedBlocks, AreGivenBackAtFirst) {
  { const ByteBuffer buffer(8 * kMebibyte); }
  EXPECT_EQ(CountLargeBlocks().kept_bytes, 0U);
  EXPECT_EQ(CountLargeBlocks().used_bytes, 0U);
}

TEST_F(FreedBlocks, ServeTheNextOfAboutTheirSize) {
  KeepFreedBlocks(1024 * kMebibyte);
  const uint8_t* place = nullptr;
  {
    const ByteBuffer buffer(40 * kMebibyte);
    place = buffer.data();
  }
  EXPECT_EQ(CountLargeBlocks().kept_bytes, 40 * kMebibyte);
  {
    const ByteBuffer buffer(39 * kMebibyte - 5);
    EXPECT_EQ(buffer.data(), place);
    EXPECT_EQ(CountLargeBlocks().kept_bytes, 0U);
  }
  const ByteBuffer other(20 * kMebibyte);
  EXPECT_NE(other.data(), place);
}

TEST_F(FreedBlocks, NeverTakeMoreThanWasInUseAtOnce) {
  KeepFreedBlocks(1024 * kMebibyte);
  const size_t most = [] {
    const ByteBuffer one(200 * kMebibyte);
    const ByteBuffer two(100 * kMebibyte);
    return CountLargeBlocks().most_used_bytes;
  }();
  for (const size_t mebibytes : {16, 48, 64, 128, 32, 200, 80, 8, 100}) {
    const ByteBuffer buffer(mebibytes * kMebibyte);
    const LargeBlocks blocks = CountLargeBlocks();
    EXPECT_LE(blocks.used_bytes + blocks.kept_bytes, most) << mebibytes;
    EXPECT_EQ(blocks.most_used_bytes, most);
  }
}

TEST_F(FreedBlocks, BeyondTheLimitGoTheOldestFirst) {
  KeepFreedBlocks(100 * kMebibyte);
  const uint8_t* older = nullptr;
  const uint8_t* newer = nullptr;
  {
    ByteBuffer one(48 * kMebibyte);
    ByteBuffer two(64 * kMebibyte);
    const ByteBuffer too_large(128 * kMebibyte);
    older = one.data();
    newer = two.data();
    one = ByteBuffer();
    two = ByteBuffer();
  }
  EXPECT_EQ(CountLargeBlocks().kept_bytes, 64 * kMebibyte);
  const ByteBuffer again(64 * kMebibyte);
  EXPECT_EQ(again.data(), newer);
  EXPECT_NE(older, nullptr);
}

TEST_F(FreedBlocks, OfAnyThreadServeAnyThread) {
  KeepFreedBlocks(1024 * kMebibyte);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        ByteBuffer buffer(static_cast<size_t>(4 + i % 5) * kMebibyte);
        buffer.front() = static_cast<uint8_t>(t);
        buffer.back() = static_cast<uint8_t>(i);
        EXPECT_EQ(buffer.front(), t);
        EXPECT_EQ(buffer.back(), i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(CountLargeBlocks().used_bytes, 0U);
}

}  // namespace
}  // namespace causeway
