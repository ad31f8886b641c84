// Takes messages of lanes apart where they lie, and puts them together around data that stays where
// it is (LaneMessage: {control = 1 | chunk = 2}). So the bytes of a chunk are copied once on the
// way in and never on the way out. The wire's bytes are those that the generated classes would
// make.
//
//   MessageKind kind = ParseMessage(bytes, header, chunk);   // no data is copied
//   int64_t i = CheckChunk(chunk, total_bytes);              // it is chunk i of the object
//   uint64_t checksum = ReadChunk(bytes, chunk, leaf);       // its bytes, at their place
//
// common/rpc/channel.h has the border to gRPC's buffers.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway {

// A serialized message, in however many pieces.
struct MessageBytes {
  std::vector<std::span<const uint8_t>> pieces;
  std::shared_ptr<const void> owner;  // Keeps the pieces; null: they outlive the message.
};

// v1.Chunk apart from its data.
struct ChunkFields {
  int64_t offset = 0;
  uint64_t checksum = 0;
  int32_t unpacked_bytes = 0;  // 0: the data is as it is, else a zstd frame of so many bytes.
  uint64_t transfer = 0;       // Which object, on a lane.
  size_t data_bytes = 0;
  size_t data_position = 0;  // Where the data begins in the parsed message.
};

enum class MessageKind { kNeither, kHeader, kChunk };

// Says which of the two the message holds. Fills `header`, a LaneControl, or `chunk`, just as the
// generated parser would, unknown fields included. INVALID_ARGUMENT if the message is malformed.
absl::StatusOr<MessageKind> ParseMessage(const MessageBytes& bytes,
                                         google::protobuf::MessageLite& header, ChunkFields& chunk);

// Returns the chunk's number in an object of `total_bytes`. OUT_OF_RANGE if it does not begin where
// a chunk of the object does; INVALID_ARGUMENT if it is not as long as that chunk is.
absl::StatusOr<int64_t> CheckChunk(const ChunkFields& chunk, int64_t total_bytes);

// Copies or unpacks the chunk's data into `leaf`, which has just the size that CheckChunk expects,
// and returns the checksum of the leaf. DATA_LOSS if the data's checksum differs, INVALID_ARGUMENT
// if it does not unpack to the size of the leaf; `leaf` is then unspecified.
absl::StatusOr<uint64_t> ReadChunk(const MessageBytes& bytes, const ChunkFields& chunk,
                                   std::span<uint8_t> leaf);

// The bytes around a chunk's data, 1 or more, in a message: head, data, tail.
struct ChunkFrame {
  std::string head;
  std::string tail;  // May be empty.
};
ChunkFrame FrameChunk(const ChunkFields& chunk);

}  // namespace causeway
