// Messages of bulk transfers, and so the lossless stage's decoder: any bytes are read as protobuf
// reads them; a chunk fills just its place in the object, or is refused.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "causeway/v1/exchange.pb.h"
#include "common/base/checksum.h"
#include "common/codec/codec.h"
#include "common/transfer/chunk_message.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

// Our parser must make the same of a message as protobuf's does.
void CheckParse(std::span<const uint8_t> bytes) {
  v1::LaneControl header;
  ChunkFields chunk;
  const auto kind = ParseMessage({.pieces = {bytes}, .owner = nullptr}, header, chunk);
  // Protobuf itself makes room, up to 50 MB, for strings of messages that it will refuse.
  if (!kind.ok()) return;
  v1::LaneMessage expected;
  FUZZ_REQUIRE(expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())),
               "protobuf refuses the message");
  FUZZ_REQUIRE((*kind == MessageKind::kHeader) == expected.has_control(), "another kind");
  FUZZ_REQUIRE((*kind == MessageKind::kChunk) == expected.has_chunk(), "another kind");
  FUZZ_REQUIRE(!expected.has_control() ||
                   header.SerializeAsString() == expected.control().SerializeAsString(),
               "another header");
  if (!expected.has_chunk()) return;
  FUZZ_REQUIRE(chunk.offset == expected.chunk().offset() &&
                   chunk.checksum == expected.chunk().checksum() &&
                   chunk.unpacked_bytes == expected.chunk().unpacked_bytes() &&
                   chunk.transfer == expected.chunk().transfer() &&
                   chunk.data_bytes == expected.chunk().data().size(),
               "another chunk");
  FUZZ_REQUIRE(chunk.data_position + chunk.data_bytes <= bytes.size(), "data beyond the message");
}

// An honest frame around hostile data, of a chunk of an object of 4 KiB at most.
void CheckChunk(std::span<const uint8_t> input) {
  if (input.size() < 3) return;
  const int promised = input[0] | input[1] << 8;
  const int64_t total = int64_t{input[2]} * 16 + 1;
  const std::span<const uint8_t> data = input.subspan(3);
  v1::LaneMessage request;
  request.mutable_chunk()->set_unpacked_bytes(promised);
  request.mutable_chunk()->set_data(data.data(), data.size());
  request.mutable_chunk()->set_checksum(Checksum64(data));
  const std::string message = request.SerializeAsString();
  const MessageBytes bytes = {
      .pieces = {{reinterpret_cast<const uint8_t*>(message.data()), message.size()}},
      .owner = nullptr};
  v1::LaneControl header;
  ChunkFields chunk;
  const auto kind = ParseMessage(bytes, header, chunk);
  FUZZ_REQUIRE(kind.ok() && *kind == MessageKind::kChunk, "an honest frame is refused");
  const auto index = CheckChunk(chunk, total);
  const int64_t size = promised != 0 ? promised : static_cast<int64_t>(data.size());
  FUZZ_REQUIRE(index.ok() == (size == total && !data.empty()), "a chunk of another size");
  if (!index.ok()) return;
  std::vector<uint8_t> leaf(static_cast<size_t>(total));
  const auto checksum = ReadChunk(bytes, chunk, leaf);
  if (!checksum.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(checksum.status()) && promised != 0,
                 std::string(checksum.status().message()));
    return;
  }
  FUZZ_REQUIRE(*checksum == Checksum64(leaf), "another checksum");
  FUZZ_REQUIRE(promised != 0 || std::ranges::equal(leaf, data), "other bytes");
  std::string packed;
  if (!EntropyPack(leaf, packed)) return;
  std::vector<uint8_t> again(leaf.size());
  FUZZ_REQUIRE(EntropyUnpack(packed, again).ok(), "what was packed does not unpack");
  FUZZ_REQUIRE(again == leaf, "packing has changed bytes");
}

void CheckSet(Input input) {
  const int64_t object_bytes = input.Take<int64_t>() >> (input.Take<uint8_t>() % 64);
  const std::span<const uint8_t> bits = input.rest();
  const auto set = ChunkSet::FromWire(
      object_bytes, absl::string_view(reinterpret_cast<const char*>(bits.data()), bits.size()));
  if (!set.ok()) return;
  FUZZ_REQUIRE(set->held_chunks() <= set->chunks() && set->held_bytes() <= object_bytes,
               "more is held than there is");
  const auto again = ChunkSet::FromWire(object_bytes, set->ToWire());
  FUZZ_REQUIRE(again.ok() && again->ToWire() == set->ToWire(), "a set does not come back");
}

void CheckInput(std::span<const uint8_t> input) {
  CheckParse(input);
  CheckChunk(input);
  CheckSet(Input(input));
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("chunk", CheckInput)
