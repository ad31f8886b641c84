#include "common/rpc/chunk.h"

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/rpc/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

using testing::HasSubstr;

// Bytes that zstd can save much of, or nothing.
std::vector<uint8_t> Bytes(size_t size, int values) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<uint8_t>(RandomBits(1, 0, i) % static_cast<uint64_t>(values));
  }
  return bytes;
}

TEST(Chunk, CrossesPlainOrPackedAsIsSmaller) {
  for (const size_t size : {size_t{1}, size_t{1000}, kChunkBytes}) {
    for (const bool entropy : {false, true}) {
      for (const int values : {3, 256}) {
        const std::vector<uint8_t> bytes = Bytes(size, values);
        v1::Chunk chunk;
        FillChunk(7, bytes, entropy, chunk);
        const bool packs = entropy && values == 3 && size >= 1000;
        EXPECT_EQ(chunk.unpacked_bytes(), packs ? static_cast<int32_t>(size) : 0);
        EXPECT_EQ(chunk.data().size() < size, packs);
        std::vector<uint8_t> object(7, 1);
        ASSERT_TRUE(AppendChunk(chunk, static_cast<int64_t>(size) + 7, object).ok());
        ASSERT_EQ(object.size(), size + 7);
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), object.begin() + 7));
      }
    }
  }
}

class HostileChunk : public testing::Test {
 protected:
  HostileChunk() { FillChunk(0, Bytes(10'000, 3), true, chunk_); }

  void ExpectRefused(absl::StatusCode code, const std::string& why, int64_t total = 10'000) {
    if (code != absl::StatusCode::kDataLoss) {
      chunk_.set_checksum(Checksum64(absl::string_view(chunk_.data())));
    }
    std::vector<uint8_t> object;
    const absl::Status status = AppendChunk(chunk_, total, object);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_TRUE(object.empty());
  }

  v1::Chunk chunk_;
};

TEST_F(HostileChunk, BeyondTheObjectIsRefusedBeforeAnythingIsUnpacked) {
  ExpectRefused(absl::StatusCode::kInvalidArgument, "goes beyond", 9'999);
}

TEST_F(HostileChunk, OfMoreThanAMebibyteIsRefused) {
  chunk_.set_unpacked_bytes(static_cast<int32_t>(kChunkBytes) + 1);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "a chunk has 1", int64_t{1} << 30);
  chunk_.set_unpacked_bytes(-1);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "a chunk has 1");
}

TEST_F(HostileChunk, ThatUnpacksToAnotherSizeIsRefused) {
  chunk_.set_unpacked_bytes(9'999);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "should unpack to 9999");
  chunk_.set_unpacked_bytes(10'001);
  ExpectRefused(absl::StatusCode::kInvalidArgument, "unpack to 10000", 20'000);
}

TEST_F(HostileChunk, WithDamagedDataIsRefused) {
  const std::string good = chunk_.data();
  chunk_.mutable_data()->at(good.size() / 2) ^= 1;
  ExpectRefused(absl::StatusCode::kDataLoss, "checksum");
  for (size_t size = 0; size < good.size(); size += 7) {
    chunk_.set_data(good.substr(0, size));
    chunk_.set_checksum(Checksum64(absl::string_view(chunk_.data())));
    std::vector<uint8_t> object;
    EXPECT_FALSE(AppendChunk(chunk_, 10'000, object).ok()) << size;
    EXPECT_TRUE(object.empty());
  }
  chunk_.set_data("no frame");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "the chunk at byte 0");
}

TEST_F(HostileChunk, OutOfOrderIsRefused) {
  chunk_.set_offset(1);
  ExpectRefused(absl::StatusCode::kOutOfRange, "expected byte 0");
}

// Any bytes: refused, or of the size that was said.
TEST_F(HostileChunk, EveryFlippedByteIsRefusedOrUnpacksToTheSizeSaid) {
  const std::string good = chunk_.data();
  for (size_t i = 0; i < good.size(); i += 3) {
    std::string data = good;
    data[i] = static_cast<char>(RandomBits(2, 0, i));
    chunk_.set_data(data);
    chunk_.set_checksum(Checksum64(absl::string_view(chunk_.data())));
    std::vector<uint8_t> object;
    const absl::Status status = AppendChunk(chunk_, 10'000, object);
    EXPECT_EQ(object.size(), status.ok() ? 10'000U : 0U);
  }
}

}  // namespace
}  // namespace causeway
