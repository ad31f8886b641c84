#include "common/transfer/chunk_message.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "causeway/v1/exchange.pb.h"
#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/codec/codec.h"
#include "common/rpc/channel.h"
#include "common/transfer/wire.h"
#include "gmock/gmock.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"
#include "tests/unit/common/rpc/plain_lane.h"

namespace causeway {
namespace {

std::vector<uint8_t> Bytes(size_t size, int values) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<uint8_t>(RandomBits(1, 0, i) % static_cast<uint64_t>(values));
  }
  return bytes;
}

std::span<const uint8_t> View(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

std::string Flat(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  return bytes;
}

ChunkFields FieldsOf(const v1::Chunk& chunk) {
  return {.offset = chunk.offset(),
          .checksum = chunk.checksum(),
          .unpacked_bytes = chunk.unpacked_bytes(),
          .transfer = chunk.transfer(),
          .data_bytes = chunk.data().size()};
}

// In pieces of `piece` bytes, as a network would deliver it.
grpc::ByteBuffer Cut(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    slices.emplace_back(bytes.substr(at, piece));
  }
  return {slices.data(), slices.size()};
}

TEST(ChunkMessage, IsOnTheWireWhatProtobufWouldMakeOfIt) {
  for (const int64_t offset : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{1} << 20,
                               kMaxObjectBytes, int64_t{-1}}) {
    for (const size_t size : {size_t{1}, size_t{127}, size_t{128}, size_t{20'000}, kChunkBytes}) {
      for (const uint64_t checksum : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
        for (const int32_t unpacked : {0, 1, 300, 1 << 20, -1}) {
          const std::vector<uint8_t> data = Bytes(size, 256);
          v1::LaneMessage push;
          v1::Chunk& chunk = *push.mutable_chunk();
          chunk.set_offset(offset);
          chunk.set_checksum(checksum);
          chunk.set_unpacked_bytes(unpacked);
          chunk.set_transfer(checksum);
          chunk.set_data(data.data(), data.size());
          const std::string raw = Flat(ChunkToBuffer(FieldsOf(chunk), data, nullptr));
          // Not EXPECT_EQ, which would print a mebibyte.
          ASSERT_TRUE(raw == push.SerializeAsString()) << offset << ' ' << size << ' ' << unpacked;
        }
      }
    }
  }
}

TEST(ChunkMessage, BorrowsItsDataUntilItHasLeft) {
  auto owner = std::make_shared<std::vector<uint8_t>>(Bytes(kChunkBytes, 256));
  const std::weak_ptr<std::vector<uint8_t>> watch = owner;
  const std::span<const uint8_t> data = *owner;
  grpc::ByteBuffer buffer = ChunkToBuffer({.offset = 5}, data, std::move(owner));
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[1].begin(), data.data());
  buffer.Clear();
  EXPECT_FALSE(watch.expired());
  slices.clear();
  EXPECT_TRUE(watch.expired());
}

TEST(ChunkMessage, ArrivesAtItsPlacePlainOrPackedInWhateverPieces) {
  for (const int values : {3, 256}) {
    for (const size_t size : {size_t{1}, size_t{1000}, kChunkBytes}) {
      const std::vector<uint8_t> bytes = Bytes(size, values);
      v1::LaneMessage request;
      FillChunk(3 << 20, bytes, true, *request.mutable_chunk());
      for (const size_t piece : {size_t{1}, size_t{100}, size_t{8192}, size_t{4} << 20}) {
        if (size / piece > 100'000) continue;
        grpc::ByteBuffer buffer = Cut(request.SerializeAsString(), piece);
        const MessageBytes message = TakeMessage(buffer);
        EXPECT_FALSE(buffer.Valid());
        v1::LaneControl header;
        ChunkFields chunk;
        const auto kind = ParseMessage(message, header, chunk).value();
        ASSERT_EQ(kind, MessageKind::kChunk);
        const auto index = CheckChunk(chunk, (3 << 20) + static_cast<int64_t>(size)).value();
        EXPECT_EQ(index, 3);
        std::vector<uint8_t> leaf(size);
        const auto checksum = ReadChunk(message, chunk, leaf).value();
        EXPECT_TRUE(leaf == bytes);
        EXPECT_EQ(checksum, Checksum64(bytes));
      }
    }
  }
}

TEST(ChunkMessage, HeadersAreParsedByProtobuf) {
  v1::LaneMessage response;
  response.mutable_control()->mutable_want()->set_round(7);
  response.mutable_control()->mutable_want()->set_transfer(8);
  grpc::ByteBuffer buffer = MessageToBuffer(response);
  v1::LaneControl header;
  header.mutable_want()->set_fragment(99);
  ChunkFields chunk;
  const auto kind = ParseMessage(TakeMessage(buffer), header, chunk).value();
  EXPECT_EQ(kind, MessageKind::kHeader);
  EXPECT_EQ(header.SerializeAsString(), response.control().SerializeAsString());
}

TEST(ChunkMessage, WholeMessagesGoThereAndBack) {
  v1::Greeting request;
  request.set_run_id("run");
  request.set_lane(5);
  v1::Greeting again;
  ASSERT_TRUE(BufferToMessage(MessageToBuffer(request), again).ok());
  EXPECT_EQ(again.SerializeAsString(), request.SerializeAsString());
  EXPECT_TRUE(BufferToMessage(grpc::ByteBuffer(), again).ok());
  EXPECT_EQ(again.SerializeAsString(), "");
  EXPECT_EQ(BufferToMessage(Cut("\x12\x7f", 1), again).code(), absl::StatusCode::kInvalidArgument);
}

// Both parsers must make the same of `bytes`.
void ExpectAsProtobuf(const std::string& bytes) {
  v1::LaneMessage expected;
  const bool parses = expected.ParseFromString(bytes);
  v1::LaneControl header;
  ChunkFields chunk;
  const auto kind = ParseMessage({.pieces = {View(bytes)}, .owner = nullptr}, header, chunk);
  ASSERT_EQ(kind.ok(), parses) << absl::CHexEscape(bytes);
  if (!parses) {
    EXPECT_EQ(kind.status().code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  ASSERT_EQ(*kind == MessageKind::kHeader, expected.has_control());
  ASSERT_EQ(*kind == MessageKind::kChunk, expected.has_chunk());
  if (expected.has_control()) {
    EXPECT_EQ(header.SerializeAsString(), expected.control().SerializeAsString());
  }
  if (!expected.has_chunk()) return;
  EXPECT_EQ(chunk.offset, expected.chunk().offset());
  EXPECT_EQ(chunk.checksum, expected.chunk().checksum());
  EXPECT_EQ(chunk.unpacked_bytes, expected.chunk().unpacked_bytes());
  ASSERT_EQ(chunk.data_bytes, expected.chunk().data().size());
  if (chunk.data_bytes > 0) {
    EXPECT_EQ(bytes.substr(chunk.data_position, chunk.data_bytes), expected.chunk().data());
  }
}

std::string SmallPush(int64_t offset, const std::string& data) {
  v1::LaneMessage request;
  request.mutable_chunk()->set_offset(offset);
  request.mutable_chunk()->set_checksum(0x0123456789abcdef);
  request.mutable_chunk()->set_data(data);
  request.mutable_chunk()->set_unpacked_bytes(1000);
  return request.SerializeAsString();
}

TEST(ChunkMessage, UnknownRepeatedAndForeignFieldsAreReadAsProtobufReadsThem) {
  v1::LaneMessage header;
  header.mutable_control()->mutable_greeting()->set_run_id("run");
  header.mutable_control()->mutable_greeting()->set_lane(9);
  const std::string head = header.SerializeAsString();
  const std::string chunk = SmallPush(1 << 20, "data");
  const std::string unknown = "\x7a\x03xyz\x78\x01\x7d\x01\x02\x03\x04";  // Field 15, three ways.
  v1::LaneMessage other;
  other.mutable_chunk()->set_data("other");
  const std::string later = other.SerializeAsString();
  for (const std::string& bytes :
       {std::string(),
        head,
        chunk,
        head + chunk,
        chunk + head,
        chunk + later,
        head + head,
        chunk + head + later,
        unknown + chunk + unknown,
        unknown,
        chunk + std::string(1, '\0'),
        std::string("\x10\x05", 2),                           // Field 2 as a number.
        std::string("\x12\x02\x18\x07", 4),                   // Data as a number.
        std::string("\x12\x00", 2),                           // An empty chunk.
        std::string("\x12\x04\x1a\x02hi", 6),                 // Data alone.
        std::string("\x12\x03\x1a\x02hi", 5),                 // It goes beyond its chunk.
        std::string("\x12\x05\x1a\x02hi", 6),                 // The chunk goes beyond the message.
        std::string("\x13\x14", 2),                           // A group.
        std::string("\x14", 1),                               // The end of none.
        std::string("\x13\x08\x01\x14", 4),                   // A group with a field.
        std::string("\x13\x1c", 2),                           // The end of another.
        std::string("\x9a\x80\x80\x80\x00\x01x", 7),          // A tag of five bytes.
        std::string("\x98\x98\x98\x98\xff\xff\xff\x00;", 9),  // A tag of eight.
        std::string("\x13\x98\x98\x98\x98\xff\xff\xff\x00;\x14", 11),
        std::string("\x12\xff\xff\xff\xff\x0f", 6),
        std::string("\x12\xff\xff\xff\xff\xff\x0f", 7),
        std::string("\x1a\x80\x80\x80\x80\x08", 6)}) {
    ExpectAsProtobuf(bytes);
  }
}

TEST(ChunkMessage, CutOffOrDamagedAnywhereIsReadAsProtobufReadsIt) {
  const std::string good = SmallPush(3 << 20, "some data") + SmallPush(0, "other data");
  for (size_t size = 0; size < good.size(); ++size) ExpectAsProtobuf(good.substr(0, size));
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      ExpectAsProtobuf(bytes);
    }
  }
}

absl::StatusCode CodeOf(ChunkFields chunk, int64_t total_bytes) {
  return CheckChunk(chunk, total_bytes).status().code();
}

TEST(HostileChunkMessage, ThatIsNoWholeChunkOfTheObjectIsRefused) {
  constexpr auto kChunk = static_cast<int64_t>(kChunkBytes);
  const int64_t total = 2 * kChunk + 10;
  EXPECT_EQ(CheckChunk({.offset = kChunk, .data_bytes = kChunkBytes}, total).value(), 1);
  EXPECT_EQ(CheckChunk({.offset = 2 * kChunk, .data_bytes = 10}, total).value(), 2);
  EXPECT_EQ(
      CheckChunk({.offset = kChunk, .unpacked_bytes = 1 << 20, .data_bytes = 3}, total).value(), 1);
  for (const int64_t offset : {int64_t{1}, kChunk - 1, 3 * kChunk, total, int64_t{-1}, -kChunk,
                               INT64_MIN, INT64_MAX, int64_t{1} << 62}) {
    EXPECT_EQ(CodeOf({.offset = offset, .data_bytes = 10}, total), absl::StatusCode::kOutOfRange)
        << offset;
  }
  for (const size_t size : {size_t{0}, size_t{9}, size_t{11}, kChunkBytes}) {
    EXPECT_EQ(CodeOf({.offset = 2 * kChunk, .data_bytes = size}, total),
              absl::StatusCode::kInvalidArgument);
  }
  for (const int32_t unpacked : {-1, 1, 9, 11, 1 << 20, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(CodeOf({.offset = 2 * kChunk, .unpacked_bytes = unpacked, .data_bytes = 10}, total),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(CodeOf({.offset = 0, .unpacked_bytes = 1 << 20, .data_bytes = kChunkBytes + 1}, total),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.offset = 0, .data_bytes = 0}, 0), absl::StatusCode::kOutOfRange);
}

// The checksum of the chunk that arrives.
absl::StatusOr<uint64_t> Deliver(const v1::LaneMessage& request, std::vector<uint8_t>& leaf) {
  const std::string bytes = request.SerializeAsString();
  const MessageBytes message = {.pieces = {View(bytes)}, .owner = nullptr};
  v1::LaneControl header;
  ChunkFields fields;
  EXPECT_TRUE(ParseMessage(message, header, fields).ok());
  return ReadChunk(message, fields, leaf);
}

TEST(HostileChunkMessage, ThatIsDamagedIsRefusedPlainOrPacked) {
  std::vector<uint8_t> leaf(10'000);
  for (const bool entropy : {false, true}) {
    v1::LaneMessage request;
    v1::Chunk& chunk = *request.mutable_chunk();
    FillChunk(0, Bytes(10'000, 3), entropy, chunk);
    chunk.mutable_data()->at(chunk.data().size() / 2) ^= 1;
    EXPECT_THAT(Deliver(request, leaf), StatusIs(kDataLoss));
    if (!entropy) continue;
    chunk.mutable_data()->assign("no frame");
    chunk.set_checksum(Checksum64(absl::string_view(chunk.data())));
    EXPECT_THAT(Deliver(request, leaf), StatusIs(kInvalidArgument));
  }
}

TEST(HostileChunkMessage, EveryFlippedByteOfAFrameIsRefusedOrUnpacksToTheSizeSaid) {
  v1::LaneMessage request;
  v1::Chunk& chunk = *request.mutable_chunk();
  FillChunk(0, Bytes(10'000, 3), true, chunk);
  const std::string good = chunk.data();
  int refused = 0;
  for (size_t i = 0; i < good.size(); i += 3) {
    std::string data = good;
    data[i] = static_cast<char>(RandomBits(2, 0, i));
    chunk.set_data(data);
    chunk.set_checksum(Checksum64(absl::string_view(chunk.data())));
    std::vector<uint8_t> leaf(10'000);
    const auto checksum = Deliver(request, leaf);
    if (checksum.ok()) {
      EXPECT_EQ(*checksum, Checksum64(leaf)) << i;
    } else {
      EXPECT_THAT(checksum, StatusIs(kInvalidArgument)) << i;
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace causeway
